"""How do the docs show state machines? As tables and diagrams, printed from the machines."""

from limosa.core.machines.machine import END, REVERT, Life, Machine


def markdown_table(machine: Machine) -> str:
    lines = [
        "| stage | reads | writes | owner | session | a run's move is | to leave it | then "
        "| given up → | what holds in it |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {stage.name} | {stage.reads.value} | {stage.writes.value} | {stage.owner.value} "
        f"| {'open' if stage.session else '–'} | {stage.run_move} "
        f"| {', '.join(work.value for work in stage.work)} | {stage.next} "
        f"| {', '.join(stage.given_up) or '–'} | {stage.holds} |"
        for stage in machine.stages
    ]
    return "\n".join(lines)


def mermaid(machine: Machine) -> str:
    lines = ["stateDiagram-v2", f"    [*] --> {machine.first.name}"]
    for stage in machine.stages:
        lines.append(f"    {stage.name} --> {stage.next}")
        lines += [f"    {stage.name} --> {name}: given up" for name in stage.given_up]
    ends = dict.fromkeys(
        name
        for stage in machine.stages
        for name in (stage.next, *stage.given_up)
        if name in (END, REVERT)
    )
    lines += [f"    {name} --> [*]" for name in ends]
    return "\n".join(lines)


def mermaid_life(life: Life) -> str:
    lines = ["stateDiagram-v2"]
    for state, events in life.edges.items():
        lines += [f"    {state} --> {to}: {event}" for event, to in events.items()]
    return "\n".join(lines)
