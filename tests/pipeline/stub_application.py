"""Something that speaks as the Spark application does, and starts at once.

How it starts is told by `conf["be"]`, what becomes of a job by its `work`. It notes what it is told
in the file `conf["notes"]`.
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOR_EVER_SECONDS = 600.0


def tell(**news: object) -> None:
    print(json.dumps(news), flush=True)


def main() -> None:
    options = json.loads(base64.b64decode(os.environ["LIMOSA_PIPELINE"]))
    conf = options["conf"]
    # PySpark keeps a secret there while Java starts: if it is killed then, that goes with the rest.
    assert tempfile.gettempdir() == options["scratch"]
    (Path(options["scratch"]) / "blocks").mkdir()
    notes = Path(conf["notes"])
    (notes.parent / "options").write_text(json.dumps(options))
    with notes.open("a") as out:
        out.write(f"start {os.getpid()}\n")
    if options.get("makes_archive"):
        time.sleep(FOR_EVER_SECONDS)
    print("Java says something", flush=True)
    match conf["be"]:
        case "late":
            while not Path(conf["gate"]).exists():
                time.sleep(0.01)
        case "never":
            time.sleep(FOR_EVER_SECONDS)
        case "refuse":
            tell(what="failed", why="there is no Java")
            sys.exit(1)
        case "die":
            os._exit(9)
        case "leave Java":
            waits = f"import time; time.sleep({FOR_EVER_SECONDS})"
            java = subprocess.Popen([sys.executable, "-c", waits], stdout=sys.stderr)
            with notes.open("a") as out:
                out.write(f"start {java.pid}\n")
            os._exit(9)
    tell(what="ready", workers=3, lacks_archive=conf["be"] == "bare")
    for line in sys.stdin:
        order = json.loads(line)
        with notes.open("a") as out:
            out.write(f"{order['do']} {order['job']}\n")
        match order.get("work"):
            case "echo":
                tell(what="done", job=order["job"], results=order.get("tasks", []))
            case "fail":
                tell(what="failed", job=order["job"], why="a task failed four times")
            case "die":
                os._exit(9)
            case "wait":
                while not Path(conf["gate"]).exists():
                    time.sleep(0.01)
                tell(what="done", job=order["job"], results=[])
    if conf["be"] == "cling":
        time.sleep(FOR_EVER_SECONDS)


if __name__ == "__main__":
    main()
