"""May it be asked for? What may not is refused with advice, and nothing else changes."""

import pytest
from msgspec.structs import replace

from limosa.core.coordinator import requests
from limosa.core.machines.catalogue import (
    ALLOW,
    CLEANUP,
    CLEANUP_TARGET,
    FALLBACK,
    READ_NEW,
    STREAMING,
    USE_NEW,
    WRITE_BOTH,
)
from limosa.core.model.changes import (
    COORDINATOR_KEY,
    Agreed,
    Commit,
    Put,
    apply,
    intent_key,
    lease_key,
    node_key,
    partition_key,
    request_key,
)
from limosa.core.model.intent import Assignment, Intent, Placement, Request
from limosa.core.model.topology import Node, Partition
from tests.core.samples import (
    LEASES,
    MEMBERS,
    NEW,
    NODES,
    OFFICE,
    OLD,
    A,
    B,
    C,
    D,
    P,
    cluster,
    intends,
    moving,
    placed,
    put,
    seen,
    stable,
)

MOVE = Request("r", "move", P, placed(*NEW))
TRIGGER = 51
"""The revision of the request's own key."""


def asked(
    request: Request,
    record: Partition | None = None,
    intent: Intent | None = None,
    live: tuple[str, ...] = NODES,
    nodes: tuple[Node, ...] = MEMBERS,
    replica_count: int = 3,
) -> tuple[Agreed, Commit]:
    record = stable() if record is None else record
    agreed = cluster(record, intent, live, nodes, (request,), replica_count)
    return agreed, requests.answer(seen(agreed), request)


def refused(commit: Commit, request: Request, words: str, advice: str) -> None:
    (change,) = commit.changes
    assert isinstance(change, Put)
    answered = change.record
    assert isinstance(answered, Request)
    assert answered.state == "refused"
    assert words in answered.answer
    assert advice in answered.answer
    assert answered == replace(request, state="refused", answer=answered.answer)
    assert commit.guards[request_key("r")] == TRIGGER
    assert commit.guards[COORDINATOR_KEY] == OFFICE


def test_a_move_becomes_intent_with_its_own_revision_as_trigger() -> None:
    """F160: in one commit with its answer."""
    _, commit = asked(MOVE)
    assert put(commit.changes, Intent) == [
        Intent(P, placed(*OLD), Assignment("move", placed(*NEW), trigger=TRIGGER), change=TRIGGER)
    ]
    assert put(commit.changes, Request) == [replace(MOVE, state="done", answer="accepted")]


def test_an_answer_is_guarded_by_all_that_it_was_computed_from() -> None:
    """F158."""
    _, commit = asked(MOVE)
    assert commit.guards == {
        request_key("r"): TRIGGER,
        partition_key(P): 50,
        intent_key(P): 45,
        **{node_key(place.node): 2 for place in MOVE.placements},
        **{lease_key(place.node): LEASES[place.node] for place in MOVE.placements},
        COORDINATOR_KEY: OFFICE,
    }


def test_a_refusal_is_guarded_by_the_absence_of_what_it_missed() -> None:
    """F158: a node that comes back meanwhile makes the refusal void."""
    _, commit = asked(MOVE, live=("a", "b", "c"))
    assert commit.guards[lease_key("d")] == 0
    _, commit = asked(replace(MOVE, placements=(*placed(A, B), Placement("x"))))
    assert (commit.guards[node_key("x")], commit.guards[lease_key("x")]) == (0, 0)


def test_applying_an_answer_ends_the_request() -> None:
    agreed, commit = asked(MOVE)
    after = apply(agreed, commit.changes, 60)
    assert after.requests["r"].state == "done"
    assert after.topology == agreed.topology


NO_TOKENS = tuple(Node(name, tokens=name != "d") for name in NODES)
LEFT = tuple(Node(name, state="left" if name == "d" else "normal") for name in NODES)
TWO_VOLUMES = tuple(Node(name, volumes=("", "v2")) for name in NODES)


@pytest.mark.parametrize(
    ("request_", "cluster_of", "words", "advice"),
    [
        (Request("r", "move", "q"), {}, "there is no partition q", "list the partitions"),
        (replace(MOVE, placements=placed(A, B, B)), {}, "two replicas on one node", "distinct"),
        (replace(MOVE, placements=placed(A, B)), {}, "2 replicas, but the zone z asks for 3", "as"),
        (
            replace(MOVE, placements=(*placed(A, B), Placement("x"))),
            {},
            "x is no member",
            "list the nodes",
        ),
        (MOVE, {"nodes": LEFT}, "d is no member", "list the nodes"),
        (MOVE, {"nodes": NO_TOKENS}, "d holds no data by choice", "choose another"),
        (
            replace(MOVE, placements=(*placed(A, B), Placement("d", "v9"))),
            {"nodes": TWO_VOLUMES},
            "d has no volume 'v9'",
            "it has '', 'v2'",
        ),
        (MOVE, {"live": ("a", "b", "c")}, "d does not live", "start it"),
        (
            Request("r", "rebuild", P, renewed=("a",)),
            {"record": stable(in_sync=(A,))},
            "a holds the only good replica",
            "can't be rebuilt from others",
        ),
        (
            Request("r", "rebuild", P, renewed=("d",)),
            {},
            "d holds no replica of it",
            "name a node that does",
        ),
        (
            replace(MOVE, kind="volume_move"),
            {},
            "a volume move stays on its nodes",
            "ask for a move",
        ),
        (
            Request("r", "cancel", P, cancels=8),
            {"record": moving(STREAMING), "intent": intends()},
            "no pending change of trigger 8",
            "look again",
        ),
        (
            Request("r", "cancel", P, cancels=9),
            {},
            "no pending change of trigger 9",
            "look again",
        ),
        *(
            (
                Request("r", "cancel", P, cancels=9),
                {"record": moving(stage), "intent": intends()},
                f"p has switched already ({stage})",
                "`reverse` takes it back",
            )
            for stage in (READ_NEW, USE_NEW, CLEANUP)
        ),
        (
            Request("r", "cancel", P, cancels=9),
            {"record": moving(READ_NEW, kind="volume_move"), "intent": intends()},
            f"p has switched already ({READ_NEW})",
            "it will complete",
        ),
        *(
            (
                Request("r", "cancel", P, cancels=9),
                {"record": moving(stage), "intent": intends()},
                f"p is on its way back already ({stage})",
                "wait",
            )
            for stage in (FALLBACK, CLEANUP_TARGET)
        ),
        *(
            (
                Request("r", kind, P),
                {"record": record},
                f"p is not held in {READ_NEW} (it is {where})",
                f"{kind} applies to a held move only",
            )
            for kind in ("reverse", "complete")
            for record, where in (
                (stable(), "in no transition"),
                (moving(STREAMING), STREAMING),
                (moving(USE_NEW), USE_NEW),
            )
        ),
        (
            Request("r", "reverse", P),
            {"record": moving(READ_NEW, kind="volume_move")},
            "a volume move never goes back",
            "wait for its end",
        ),
    ],
)
def test_what_contradicts_the_agreed_state_is_refused_and_changes_nothing(
    request_: Request, cluster_of: dict[str, object], words: str, advice: str
) -> None:
    agreed, commit = asked(request_, **cluster_of)  # type: ignore[arg-type]
    refused(commit, request_, words, advice)
    after = apply(agreed, commit.changes, 60)
    assert after.topology == agreed.topology
    assert after.intents == agreed.intents


def test_a_second_move_does_not_start_a_second_transition() -> None:
    """F109: it is queued behind the one that runs."""
    second = replace(MOVE, placements=placed(A, C, D))
    agreed, commit = asked(second, moving(STREAMING), intends())
    after = apply(agreed, commit.changes, 60)
    assert after.topology == agreed.topology
    assert after.intents[P].pending == intends().pending
    assert after.intents[P].planned == Assignment("move", placed(A, C, D), trigger=TRIGGER)


def test_a_request_that_is_older_than_the_last_one_served_is_told_so() -> None:
    """F159 S17: it changes nothing."""
    served = replace(intends(), change=TRIGGER + 1)
    _, commit = asked(MOVE, moving(STREAMING), served)
    assert put(commit.changes, Intent) == [served]
    assert put(commit.changes, Request) == [
        replace(MOVE, state="done", answer="a newer request was served")
    ]


@pytest.mark.parametrize("stage", [ALLOW, WRITE_BOTH, STREAMING])
def test_a_cancel_before_the_switch_is_stored(stage: str) -> None:
    _, commit = asked(Request("r", "cancel", P, cancels=9), moving(stage), intends())
    assert put(commit.changes, Intent) == [intends(cancel=9)]


def test_a_cancel_before_the_transition_began_takes_the_intent_back() -> None:
    _, commit = asked(Request("r", "cancel", P, cancels=9), stable(), intends())
    assert put(commit.changes, Intent) == [Intent(P, placed(*OLD), change=9)]
    assert "cancelled before it began" in commit.why


def test_a_held_move_can_be_completed_or_reversed() -> None:
    record = moving(READ_NEW, hold_seconds=60)
    _, commit = asked(Request("r", "complete", P), record)
    assert put(commit.changes, Partition) == [moving(READ_NEW, hold_seconds=60, released=True)]
    _, commit = asked(Request("r", "reverse", P), record)
    assert put(commit.changes, Partition) == [
        moving(READ_NEW, hold_seconds=60, giving_up="reversed by request")
    ]


def test_a_volume_move_names_another_volume_of_the_same_node() -> None:
    places = (Placement("a", "v2"), *placed(B, C))
    request = Request("r", "volume_move", P, places)
    _, commit = asked(request, nodes=TWO_VOLUMES)
    (intent,) = put(commit.changes, Intent)
    assert isinstance(intent, Intent)
    assert intent.pending == Assignment("volume_move", places, trigger=TRIGGER)


def test_a_rebuild_names_whom_it_renews() -> None:
    _, commit = asked(Request("r", "rebuild", P, renewed=("c",)))
    (intent,) = put(commit.changes, Intent)
    assert isinstance(intent, Intent)
    assert intent.pending == Assignment("rebuild", (), ("c",), trigger=TRIGGER)


def test_a_move_to_where_it_is_is_done_at_once() -> None:
    _, commit = asked(replace(MOVE, placements=placed(C, A, B)))
    assert put(commit.changes, Intent) == [Intent(P, placed(*OLD), change=TRIGGER)]
