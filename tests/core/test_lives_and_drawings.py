"""May a node do that now? And do the drawings show what the tables say?"""

from typing import get_args

import pytest

from limosa.core.machines.catalogue import LIVES, MACHINES, NODE
from limosa.core.machines.machine import Life
from limosa.core.model.topology import NodeState
from limosa.errors import BadInput, IllegalTransition, UnknownStage
from tools.drawing import markdown_table, mermaid, mermaid_life

# fmt: off
NODE_EDGES = {
    ("none",            "join"):        "bootstrapping",
    ("none",            "replace"):     "replacing",
    ("none",            "be rejected"): "left",
    ("bootstrapping",   "succeed"):     "normal",
    ("bootstrapping",   "fail"):        "left",
    ("replacing",       "succeed"):     "normal",
    ("replacing",       "fail"):        "left",
    ("normal",          "rebuild"):     "rebuilding",
    ("normal",          "leave"):       "decommissioning",
    ("normal",          "be removed"):  "removing",
    ("rebuilding",      "succeed"):     "normal",
    ("decommissioning", "succeed"):     "left",
    ("decommissioning", "fail"):        "normal",
    ("decommissioning", "be removed"):  "removing",
    ("removing",        "succeed"):     "left",
    ("removing",        "fail"):        "normal",
}
# fmt: on
NODE_STATES = {
    *("none", "bootstrapping", "decommissioning", "removing"),
    *("replacing", "rebuilding", "normal", "left"),
}


def every_pair(life: Life, drawn: dict[tuple[str, str], str]) -> list[tuple[Life, str, str]]:
    events = {event for _, event in drawn}
    return [(life, state, event) for state in life.edges for event in sorted(events)]


@pytest.mark.parametrize(("life", "state", "event"), every_pair(NODE, NODE_EDGES))
def test_only_what_is_drawn_can_happen(life: Life, state: str, event: str) -> None:
    drawn = NODE_EDGES
    if (state, event) in drawn:
        assert life.after(state, event) == drawn[state, event]
        return
    with pytest.raises(IllegalTransition) as caught:
        life.after(state, event)
    assert isinstance(caught.value, BadInput)
    assert f"a {life.name} that is {state} can't {event}" in caught.value.message
    assert caught.value.advice.startswith("it can: ")


def test_the_states_are_those_that_are_asked_for() -> None:
    assert set(NODE.edges) == NODE_STATES
    assert set(NODE.edges) == set(get_args(NodeState))
    for life in LIVES.values():
        for edges in life.edges.values():
            assert set(edges.values()) <= set(life.edges)


def test_what_has_ended_can_do_nothing_more() -> None:
    with pytest.raises(IllegalTransition, match="nothing more"):
        NODE.after("left", "join")


def test_a_state_that_does_not_exist_is_an_error_that_lists_those_that_do() -> None:
    with pytest.raises(UnknownStage) as caught:
        NODE.after("asleep", "join")
    assert "asleep is not a state of a node" in caught.value.message
    assert all(state in caught.value.advice for state in NODE.edges)


@pytest.mark.parametrize("name", MACHINES)
def test_the_table_of_a_machine_shows_every_stage_in_a_line(name: str) -> None:
    machine = MACHINES[name]
    lines = markdown_table(machine).splitlines()
    assert len(lines) == len(machine.stages) + 2
    for line, stage in zip(lines[2:], machine.stages, strict=True):
        assert line.startswith(f"| {stage.name} | {stage.reads.value} | {stage.writes.value} ")
        assert all(work.value in line for work in stage.work)
        assert f"| {stage.run_move} |" in line
        assert all(to in line for to in (stage.next, *stage.given_up))
        assert line.count("|") == lines[0].count("|")


@pytest.mark.parametrize("name", MACHINES)
def test_the_diagram_of_a_machine_shows_every_edge(name: str) -> None:
    machine = MACHINES[name]
    lines = [line.strip() for line in mermaid(machine).splitlines()]
    assert lines[0] == "stateDiagram-v2"
    assert f"[*] --> {machine.first.name}" in lines
    for stage in machine.stages:
        assert f"{stage.name} --> {stage.next}" in lines
        for to in stage.given_up:
            assert f"{stage.name} --> {to}: given up" in lines
    assert "end --> [*]" in lines
    assert ("revert --> [*]" in lines) == (name != "repair")
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize("name", LIVES)
def test_the_diagram_of_a_life_shows_every_event(name: str) -> None:
    life = LIVES[name]
    lines = [line.strip() for line in mermaid_life(life).splitlines()]
    for state, events in life.edges.items():
        for event, to in events.items():
            assert f"{state} --> {to}: {event}" in lines
    assert len(lines) == 1 + sum(len(events) for events in life.edges.values())
