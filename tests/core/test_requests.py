"""May it be asked for? What may not is refused with advice, and nothing else changes."""

import pytest
from msgspec.structs import replace

from limosa.core.coordinator import requests, transitions
from limosa.core.coordinator.settings import CoordinatorSettings
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
from limosa.core.messages import Status
from limosa.core.model.changes import (
    CONTROLS_KEY,
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
from limosa.core.model.intent import Assignment, Intent, Placement
from limosa.core.model.requests import (
    AnyWish,
    CancelChange,
    CompleteMove,
    LedToTransition,
    MovePartition,
    MoveToVolume,
    RebuildReplicas,
    RepairPartition,
    Request,
    ReverseMove,
)
from limosa.core.model.topology import Node, Partition
from tests.core.asking import wanting
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
    of,
    placed,
    put,
    says,
    seen,
    stable,
)

MOVE = Request("r", MovePartition(P, placed(*NEW)))
BEGINS = LedToTransition(P, f"t{51}")
TRIGGER = 51
"""The revision of the request's own key."""


def asked(
    request: Request,
    record: Partition | None = None,
    intent: Intent | None = None,
    live: tuple[str, ...] = NODES,
    nodes: tuple[Node, ...] = MEMBERS,
    replica_count: int = 3,
    statuses: tuple[Status, ...] = (),
    settings: CoordinatorSettings | None = None,
) -> tuple[Agreed, Commit]:
    record = stable() if record is None else record
    agreed = cluster(record, intent, live, nodes, (request,), replica_count)
    return agreed, requests.answer(seen(agreed, *statuses, settings=settings), request)


def refused(commit: Commit, request: Request, words: str, advice: str) -> None:
    (change,) = commit.changes
    assert isinstance(change, Put)
    answered = change.record
    assert isinstance(answered, Request)
    assert answered.state == "refused"
    assert words in answered.answer
    assert advice in answered.answer
    assert answered == replace(request, state="refused", answer=answered.answer, trigger=TRIGGER)
    assert commit.guards[request_key("r")] == TRIGGER
    assert commit.guards[COORDINATOR_KEY] == OFFICE


def test_a_move_becomes_intent_with_its_own_revision_as_trigger() -> None:
    """F160: in one commit with its answer."""
    _, commit = asked(MOVE)
    assert put(commit.changes, Intent) == [
        Intent(P, placed(*OLD), Assignment("move", placed(*NEW), trigger=TRIGGER), change=TRIGGER)
    ]
    answered = replace(MOVE, state="done", answer="accepted", led_to=BEGINS, trigger=TRIGGER)
    assert put(commit.changes, Request) == [answered]


def test_an_answer_names_the_transition_that_it_led_to() -> None:
    """Also if the same change is under way by an earlier request."""
    agreed, commit = asked(MOVE)
    row = apply(agreed, commit.changes, 60).requests["r"]
    assert (row.transition, row.run) == (f"t{TRIGGER}", "")
    agreed, commit = asked(MOVE, moving(STREAMING), intends())
    assert apply(agreed, commit.changes, 60).requests["r"].transition == "t9"
    assert (MOVE.transition, MOVE.run) == ("", "")


def test_an_answer_is_guarded_by_all_that_it_was_computed_from() -> None:
    """F158."""
    _, commit = asked(MOVE)
    assert commit.guards == {
        request_key("r"): TRIGGER,
        partition_key(P): 50,
        intent_key(P): 45,
        **{node_key(place.node): 2 for place in placed(*NEW)},
        **{lease_key(place.node): LEASES[place.node] for place in placed(*NEW)},
        COORDINATOR_KEY: OFFICE,
        CONTROLS_KEY: 0,
    }


def test_a_refusal_is_guarded_by_the_absence_of_what_it_missed() -> None:
    """F158: a node that comes back meanwhile makes the refusal void."""
    _, commit = asked(MOVE, live=("a", "b", "c"))
    assert commit.guards[lease_key("d")] == 0
    _, commit = asked(wanting(MOVE, placements=(*placed(A, B), Placement("x"))))
    assert (commit.guards[node_key("x")], commit.guards[lease_key("x")]) == (0, 0)


def test_applying_an_answer_ends_the_request() -> None:
    agreed, commit = asked(MOVE)
    after = apply(agreed, commit.changes, 60)
    assert after.requests["r"].state == "done"
    assert after.topology == agreed.topology


def test_when_it_was_asked_and_answered_is_written_down_and_decides_nothing() -> None:
    """For people: `asked` stays as it came, `answered` is what the coordinator's clock shows."""
    commits = []
    for when, wall in ((0.0, 0.0), (7.0, 9.0), (1e300, 1.0)):
        request = replace(MOVE, asked=when)
        agreed = cluster(stable(), None, NODES, MEMBERS, (request,))
        commit = requests.answer(seen(agreed, wall=wall), request)
        answered = apply(agreed, commit.changes, 60).requests["r"]
        assert (answered.asked, answered.answered) == (when, wall)
        plain = Put(replace(answered, asked=0.0, answered=0.0))
        commits.append(replace(commit, changes=(*commit.changes[:-1], plain)))
    assert commits == commits[:1] * 3


NO_TOKENS = tuple(Node(name, tokens=name != "d") for name in NODES)
LEFT = tuple(Node(name, state="left" if name == "d" else "normal") for name in NODES)
MIB = 1 << 20
LARGE = says("a", of(A, bytes=1000 * MIB))
"""The owner, and what its replica takes."""
TWO_VOLUMES = tuple(Node(name, volumes=("", "v2")) for name in NODES)


@pytest.mark.parametrize(
    ("request_", "cluster_of", "words", "advice"),
    [
        (Request("r", MovePartition("q")), {}, "there is no partition q", "list the partitions"),
        (wanting(MOVE, placements=placed(A, B, B)), {}, "two replicas on one node", "distinct"),
        (wanting(MOVE, placements=placed(A, B)), {}, "2 replicas, but the zone z asks for 3", "as"),
        (
            wanting(MOVE, placements=(*placed(A, B), Placement("x"))),
            {},
            "x is not a member",
            "limosa nodes",
        ),
        (MOVE, {"nodes": LEFT}, "d is not a member", "limosa nodes"),
        (MOVE, {"nodes": NO_TOKENS}, "d was started with --no-data", "choose another"),
        (
            wanting(MOVE, placements=(*placed(A, B), Placement("d", "v9"))),
            {"nodes": TWO_VOLUMES},
            "d has no volume 'v9'",
            "it has '', 'v2'",
        ),
        (MOVE, {"live": ("a", "b", "c")}, "d is down", "start it"),
        (
            Request("r", RebuildReplicas(P, ("a",))),
            {"record": stable(in_sync=(A,))},
            "a holds the only in-sync replica",
            "can't be rebuilt from others",
        ),
        (
            Request("r", RebuildReplicas(P, ("d",))),
            {},
            "d holds no replica of p",
            "name a node that does",
        ),
        (
            Request("r", MoveToVolume(P, placed(*NEW))),
            {},
            "a volume move can't change nodes",
            "ask for a move",
        ),
        (
            Request("r", CancelChange(P, 8)),
            {"record": moving(STREAMING), "intent": intends()},
            "no pending change of trigger 8",
            "look again",
        ),
        (
            Request("r", CancelChange(P, 9)),
            {},
            "no pending change of trigger 9",
            "look again",
        ),
        *(
            (
                Request("r", CancelChange(P, 9)),
                {"record": moving(stage), "intent": intends()},
                f"p has switched already ({stage})",
                "`reverse` takes it back",
            )
            for stage in (READ_NEW, USE_NEW, CLEANUP)
        ),
        (
            Request("r", CancelChange(P, 9)),
            {"record": moving(READ_NEW, kind="volume_move"), "intent": intends()},
            f"p has switched already ({READ_NEW})",
            "it will complete",
        ),
        *(
            (
                Request("r", CancelChange(P, 9)),
                {"record": moving(stage), "intent": intends()},
                f"p is being reverted already ({stage})",
                "wait",
            )
            for stage in (FALLBACK, CLEANUP_TARGET)
        ),
        *(
            (
                Request("r", wish),
                {"record": record},
                f"p is not held (it is {where})",
                f"{wish.kind} applies to a held move only",
            )
            for wish in (ReverseMove(P), CompleteMove(P))
            for record, where in (
                (stable(), "in no transition"),
                (moving(STREAMING), STREAMING),
                (moving(USE_NEW), USE_NEW),
            )
        ),
        *(
            (
                wanting(MOVE, placements=placed(A, C, D)),
                {"record": record, "intent": intent},
                f"p is being {done} already ({where})",
                "wait for its end, cancel it, or ask for the move after it",
            )
            for record, intent, done, where in (
                (moving(STREAMING), intends(), "moved", STREAMING),
                (stable(), intends(), "moved", "it has not begun"),
                (moving(STREAMING), intends(cancel=9), "moved", STREAMING),
                (moving(ALLOW, kind="rebuild"), intends("rebuild"), "rebuilt", ALLOW),
            )
        ),
        (
            wanting(MOVE, hold_seconds=60.0),
            {"record": moving(STREAMING), "intent": intends()},
            "p is being moved already",
            "cancel it",
        ),
        (
            Request("r", MovePartition(P, source="d", target=Placement("c"))),
            {},
            "d holds no replica of p",
            "name one of a, b, c",
        ),
        (
            Request("r", MovePartition(P, target=Placement("d"))),
            {},
            "no node holds no replica of p",
            "name one of a, b, c",
        ),
        (
            Request("r", MovePartition(P, source="a", target=Placement("c"))),
            {},
            "c holds a replica of p already",
            "choose another node",
        ),
        (
            Request("r", MovePartition(P, source="a", target=Placement("x"))),
            {},
            "x is not a member",
            "limosa nodes",
        ),
        (
            MOVE,
            {
                "settings": CoordinatorSettings(
                    moves_refused="Spark is off here", moves_advice="install it"
                )
            },
            "Spark is off here",
            "install it",
        ),
        (
            MOVE,
            {"statuses": (LARGE, says("d", free_bytes={"": 1400 * MIB}))},
            "d has 1,400 MiB free, and p needs 1,456 MiB: it takes 1,000 MiB, and some must stay",
            "make room",
        ),
        (
            Request("r", RebuildReplicas(P, ("c",))),
            {"statuses": (LARGE, says("c", free_bytes={"": 10 * MIB}))},
            "c has 10 MiB free, and p needs 1,456 MiB",
            "choose another node or volume",
        ),
        (
            Request("r", MoveToVolume(P, (Placement("c", "v2"), *placed(A, B)))),
            {
                "statuses": (LARGE, says("c", free_bytes={"": 9000 * MIB, "v2": 10 * MIB})),
                "nodes": TWO_VOLUMES,
            },
            "c has 10 MiB free on its volume v2, and p needs 1,456 MiB",
            "choose another node or volume",
        ),
        (
            Request("r", CompleteMove(P)),
            {"record": moving(READ_NEW, giving_up="reversed by request", by="operator")},
            "p is being reverted: reversed by request",
            "wait",
        ),
        (wanting(MOVE, hold_seconds=-3.0), {}, "durations must not be negative", "give seconds"),
        (
            wanting(MOVE, max_pause_seconds=-1.0),
            {},
            "durations must not be negative",
            "give seconds",
        ),
        (
            Request("r", ReverseMove(P)),
            {"record": moving(READ_NEW, kind="volume_move")},
            "a volume move can't be reversed",
            "wait for its end",
        ),
    ],
)
def test_what_contradicts_the_agreed_state_is_refused_and_changes_nothing(
    request_: Request, cluster_of: dict[str, object], words: str, advice: str
) -> None:
    """What can't be done, and a second move of one partition."""
    agreed, commit = asked(request_, **cluster_of)  # type: ignore[arg-type]
    refused(commit, request_, words, advice)
    after = apply(agreed, commit.changes, 60)
    assert after.topology == agreed.topology
    assert after.intents == agreed.intents


def test_a_second_move_does_not_start_a_second_transition() -> None:
    """One who knows of the first has it queued behind the one that runs."""
    second = wanting(MOVE, placements=placed(A, C, D), after_pending=True)
    agreed, commit = asked(second, moving(STREAMING), intends())
    after = apply(agreed, commit.changes, 60)
    assert after.topology == agreed.topology
    assert after.intents[P].pending == intends().pending
    assert after.intents[P].planned == Assignment("move", placed(A, C, D), trigger=TRIGGER)


def test_to_ask_for_the_same_move_again_is_no_harm() -> None:
    """It is under way, and stays so; a plan behind it is dropped, as always."""
    planned = Assignment("move", placed(A, C, D), trigger=12)
    _, commit = asked(MOVE, moving(STREAMING), intends(planned=planned))
    assert put(commit.changes, Intent) == [replace(intends(), change=TRIGGER)]
    assert put(commit.changes, Request) == [
        replace(
            MOVE,
            state="done",
            answer="under way already",
            led_to=LedToTransition(P, "t9"),
            trigger=TRIGGER,
        )
    ]


def test_one_may_say_which_replica_goes_and_where_to() -> None:
    """What the others are is read when it is decided, not when it is asked for."""
    request = Request(
        "r", MovePartition(P, source="a", target=Placement("d"), max_pause_seconds=0.05)
    )
    _, commit = asked(request)
    (intent,) = put(commit.changes, Intent)
    assert isinstance(intent, Intent)
    places = (Placement("d"), *placed(B, C))
    assert intent.pending == Assignment("move", places, trigger=TRIGGER, max_pause_seconds=0.05)
    assert commit.guards[lease_key("d")] == LEASES["d"]


@pytest.mark.parametrize(
    "statuses",
    [
        (LARGE,),
        (LARGE, says("d")),
        (LARGE, says("d", free_bytes={"v2": 1})),
        (LARGE, says("d", free_bytes={"": 1456 * MIB})),
        (says("a", of(A)), says("d", free_bytes={"": 1})),
        (LARGE, says("b", free_bytes={"": 1}), says("d", free_bytes={"": 9000 * MIB})),
    ],
    ids=["silent", "no word", "another volume", "enough", "size unknown", "it stays there"],
)
def test_room_is_asked_for_only_where_something_comes_and_as_far_as_it_is_known(
    statuses: tuple[Status, ...],
) -> None:
    _, commit = asked(MOVE, statuses=statuses)
    answered = replace(MOVE, state="done", answer="accepted", led_to=BEGINS, trigger=TRIGGER)
    assert put(commit.changes, Request) == [answered]


@pytest.mark.parametrize("wish", [RebuildReplicas(P, ("c",)), RepairPartition(P)])
def test_where_moves_are_refused_replicas_are_still_mended(wish: AnyWish) -> None:
    request = Request("r", wish)
    _, commit = asked(request, settings=CoordinatorSettings(moves_refused="Spark is off here"))
    assert put(commit.changes, Request) == [
        replace(request, state="done", answer="accepted", led_to=BEGINS, trigger=TRIGGER)
    ]


def test_a_request_that_is_older_than_the_last_one_served_is_told_so() -> None:
    """F159 S17: it changes nothing."""
    served = replace(intends(), change=TRIGGER + 1)
    _, commit = asked(MOVE, moving(STREAMING), served)
    assert put(commit.changes, Intent) == [served]
    assert put(commit.changes, Request) == [
        replace(MOVE, state="done", answer="superseded by a newer request", trigger=TRIGGER)
    ]


@pytest.mark.parametrize("stage", [ALLOW, WRITE_BOTH, STREAMING])
def test_a_cancel_before_the_switch_is_stored(stage: str) -> None:
    _, commit = asked(Request("r", CancelChange(P, 9)), moving(stage), intends())
    assert put(commit.changes, Intent) == [intends(cancel=9)]


def test_a_cancel_before_the_transition_began_takes_the_intent_back() -> None:
    _, commit = asked(Request("r", CancelChange(P, 9)), stable(), intends())
    assert put(commit.changes, Intent) == [Intent(P, placed(*OLD), change=9)]
    assert "cancelled before it began" in commit.why


def test_a_held_move_can_be_completed_or_reversed() -> None:
    record = moving(READ_NEW, hold_seconds=60)
    _, commit = asked(Request("r", CompleteMove(P)), record)
    assert put(commit.changes, Partition) == [moving(READ_NEW, hold_seconds=60, released=True)]
    _, commit = asked(Request("r", ReverseMove(P)), record)
    assert put(commit.changes, Partition) == [
        moving(READ_NEW, hold_seconds=60, giving_up="reversed by request", by="operator")
    ]


def test_a_volume_move_names_another_volume_of_the_same_node() -> None:
    places = (Placement("a", "v2"), *placed(B, C))
    request = Request("r", MoveToVolume(P, places))
    _, commit = asked(request, nodes=TWO_VOLUMES)
    (intent,) = put(commit.changes, Intent)
    assert isinstance(intent, Intent)
    assert intent.pending == Assignment("volume_move", places, trigger=TRIGGER)


def test_a_rebuild_names_whom_it_renews() -> None:
    _, commit = asked(Request("r", RebuildReplicas(P, ("c",))))
    (intent,) = put(commit.changes, Intent)
    assert isinstance(intent, Intent)
    assert intent.pending == Assignment("rebuild", (), ("c",), trigger=TRIGGER)


def test_a_move_to_where_it_is_is_done_at_once() -> None:
    _, commit = asked(wanting(MOVE, placements=placed(C, A, B)))
    assert put(commit.changes, Intent) == [Intent(P, placed(*OLD), change=TRIGGER)]
    assert "nothing to do: the replicas are there already" in commit.why


# --- a partition that has another number of replicas than its zone asks for

TWO = stable((A, B))
"""The zone asks for three, and the change that was to make them was given up."""


@pytest.mark.parametrize(
    "request_",
    [
        Request("r", MovePartition(P, source="b", target=Placement("d"))),
        Request("r", MovePartition(P, placed(A, C))),
        Request("r", RebuildReplicas(P, ("b",))),
        Request("r", RepairPartition(P)),
        wanting(MOVE, placements=placed(A, B, D)),
    ],
)
def test_a_partition_with_too_few_replicas_is_moved_rebuilt_and_completed(
    request_: Request,
) -> None:
    """A change of the replica count that was given up must not block every later change."""
    agreed, commit = asked(request_, TWO)
    after = apply(agreed, commit.changes, 60)
    assert after.requests["r"].state == "done"
    begun = transitions.start(seen(after, *map(says, NODES)), TWO, after.intents[P])
    assert isinstance(begun, Commit)
    assert apply(after, begun.changes, 61).topology.partitions[P].transition is not None


def test_the_number_of_replicas_is_that_of_the_zone_or_the_one_that_there_is() -> None:
    request = wanting(MOVE, placements=placed(A))
    _, commit = asked(request, TWO)
    refused(commit, request, "1 replicas, but the zone z asks for 3", "as many nodes as the zone")


def test_a_change_that_is_planned_fits_what_the_pending_one_leaves() -> None:
    """The zone gets a third replica: what comes after it has three, too."""
    grows = replace(intends(targets=(A, B, D)), stable=placed(A, B))
    request = Request("r", MovePartition(P, placed(A, C), after_pending=True))
    _, commit = asked(request, TWO, grows)
    refused(commit, request, "2 replicas, but the zone z asks for 3", "as many nodes as the zone")
    mends = replace(intends("rebuild", targets=(), renewed=("b",)), stable=placed(A, B))
    agreed, commit = asked(request, TWO, mends)
    assert apply(agreed, commit.changes, 60).requests["r"].state == "done"
