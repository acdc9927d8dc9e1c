"""How does this package reach Spark's workers? As a zip file."""

import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def as_zip(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for file in sorted(ROOT.rglob("*.py")):
            out.write(file, file.relative_to(ROOT.parent))
    return path
