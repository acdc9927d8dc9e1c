"""How are rows copied? Under a session: the source reads slices, and the target stores them.

A slice counts only after its `End`, and only while its session is open at its epoch. A slice that
is late, duplicated or incomplete changes nothing.
"""

from limosa.core import routing
from limosa.core.effects import ApplySlice, LinkRows, ReadSlice, ShelveSlice, StoreEpoch
from limosa.core.events import DigestTaken, RowsLinked, SliceRead, SliceShelved
from limosa.core.machines.machine import Work
from limosa.core.messages import Chunk, Denied, End, Fetch, Fetched, Landed, Link
from limosa.core.model.keys import PartitionId, Position, SessionId
from limosa.core.model.rows import Rows
from limosa.core.participant.held import Held
from limosa.core.participant.serving import Serving
from limosa.core.participant.state import NodeState


class Copying:
    """Slices, links and digests of this node's replicas."""

    def __init__(self, node: NodeState, serving: Serving) -> None:
        self._node = node
        self._serving = serving
        self._slices: dict[int, tuple[Held, Fetch, str]] = {}
        self._shelving: dict[int, tuple[Held, End, str, int]] = {}
        """Slices being written to files: replica, message, sender, and `held.beginnings`."""
        self._links: dict[int, tuple[Held, Held, Link, int]] = {}
        """Links under way: target, source, message, and the epoch in which the target began."""

    def digest_taken(self, now: float, event: DigestTaken) -> None:
        held = self._node.held.get((event.partition, event.incarnation))
        if held is None or held.check is None:
            return
        if event.digest is None:
            held.check = None
            held.trouble = "unreadable"
            self._node.changed.mark(held.partition)
        elif held.check[1] == event.at == held.checked[0]:
            digest = (held.check[0], event.at, event.digest << 64 | held.checked[1])
            held.check = None
            # The rows at this position must be durable before the coordinator relies on them.
            ticket = self._node.when_stored(held, lambda now: self._digest_stored(held, digest))
            self._node.out.append(
                StoreEpoch(held.partition, held.replica.incarnation, ticket, held.epoch)
            )

    def _digest_stored(self, held: Held, digest: tuple[SessionId, Position, int]) -> None:
        if held.session == digest[0]:
            held.digest = digest
            self._node.changed.mark(held.partition)

    def permit(self, partition: PartitionId, session: str, epoch: int) -> bool:
        """The session is open at this epoch, and its stage copies or repairs rows."""
        record = self._node.topology.partitions.get(partition)
        stage = None if record is None else routing.stage_of(record)
        if record is None or record.transition is None or stage is None:
            return False
        moves_data = Work.COPY in stage.work or Work.REPAIR in stage.work
        return moves_data and record.transition.session == session and record.epoch == epoch

    def fetch(self, now: float, sender: str, message: Fetch) -> None:
        owner = self._serving.serving(now, message.partition)
        permitted = self.permit(message.partition, message.session, message.epoch)
        if owner is None or not permitted or not 0 <= message.slice < message.slices:
            self._deny(sender, message, "the source does not own this partition in this session")
            return
        ticket = next(self._node.tickets)
        self._slices[ticket] = (owner.held, message, sender)
        self._node.out.append(
            ReadSlice(
                message.partition,
                owner.held.replica.incarnation,
                ticket,
                message.slice,
                message.slices,
                owner.copied_up_to(),
            )
        )

    def slice_read(self, now: float, event: SliceRead) -> None:
        reading = self._slices.pop(event.ticket, None)
        if reading is None:
            return
        held, message, sender = reading
        owner = self._node.owners.get(message.partition)
        waits = 0.0 if owner is None else owner.waits_seconds(now)
        self._node.pace.copied(now, event.rows.bytes, waits)
        fetched = Fetched(
            message.partition,
            message.session,
            message.slice,
            event.rows,
            event.through,
            held.producers.value(event.through),
            event.rows.digest(),
            message.slices,
            self._node.pace.pause_seconds(now),
        )
        self._node.send(sender, fetched)

    def chunk(self, now: float, sender: str, message: Chunk) -> None:
        held = self._node.held.get((message.partition, message.to))
        if held is None or not self.permit(message.partition, message.session, message.epoch):
            self._deny(sender, message, "no open session")
            return
        key = (message.session, message.slice, message.attempt)
        held.chunks.setdefault(key, {})[message.number] = message

    def end(self, now: float, sender: str, message: End) -> None:
        held = self._node.held.get((message.partition, message.to))
        if held is None or not self.permit(message.partition, message.session, message.epoch):
            self._deny(sender, message, "no open session")
            return
        chunks = held.chunks.pop((message.session, message.slice, message.attempt), {})
        parts = list(chunks.values())
        landed = message.slice in held.landed.get((message.session, message.slices), ())
        if landed or held.copied == message.session:  # these rows would be newer than the others
            self._node.send(sender, _landed(message, 0.0))
            return
        problem = self.incomplete(held, message, parts)
        if problem:
            self._deny(sender, message, problem)
            return
        rows = tuple(part.rows for part in sorted(parts, key=lambda part: part.number))
        self._node.pace.copied(now, sum(each.bytes for each in rows))
        if self.may_shelve(held, rows):
            self._shelve(held, sender, message, rows)
        elif sum(each.digest() for each in rows) != message.digest:
            self._deny(sender, message, "the digest differs")
        else:
            self._apply_slice(held, sender, message, rows)

    def may_shelve(self, held: Held, rows: tuple[Rows, ...]) -> bool:
        """Only a large slice, and only for a replica that is not read yet, since its rows become
        visible in two steps. Every way out of a stage that fills a replica passes a barrier, which
        waits for slices under way; a repair ends without a barrier."""
        record = self._node.topology.partitions[held.partition]
        is_new = held.replica in routing.new_only(record)
        return is_new and sum(each.bytes for each in rows) >= self._node.settings.shelved_bytes

    def _apply_slice(self, held: Held, sender: str, message: End, rows: tuple[Rows, ...]) -> None:
        held.producers.unite(message.producers)
        beginnings = held.beginnings
        ticket = self._node.when_stored(
            held, lambda now: self._landed(now, held, sender, message, ticket, beginnings)
        )
        held.permits[ticket] = message.session
        self._node.out.append(
            ApplySlice(held.partition, held.replica.incarnation, ticket, rows, message.producers)
        )

    def _shelve(self, held: Held, sender: str, message: End, rows: tuple[Rows, ...]) -> None:
        for under_way, slice, _, beginnings in self._shelving.values():
            if under_way is held and beginnings == held.beginnings and _is_same(slice, message):
                return  # storing it once more would only take longer
        ticket = next(self._node.tickets)
        self._shelving[ticket] = (held, message, sender, held.beginnings)
        held.permits[ticket] = message.session
        self._node.out.append(
            ShelveSlice(
                message.partition,
                message.to,
                ticket,
                message.slice,
                message.slices,
                rows,
                message.digest,
            )
        )

    def slice_shelved(self, now: float, event: SliceShelved) -> None:
        """Most rows are in a file; the rest goes through the log, and then the slice has landed."""
        shelving = self._shelving.pop(event.ticket, None)
        if shelving is None:
            return
        held, message, sender, beginnings = shelving
        held.permits.pop(event.ticket, None)
        self._node.changed.mark(held.partition)
        if event.problem:
            self._deny(sender, message, event.problem)
        elif (
            self._node.held.get((message.partition, message.to)) is held
            and held.beginnings == beginnings  # otherwise the rows may have been removed
            and self.permit(message.partition, message.session, message.epoch)
        ):
            self._apply_slice(held, sender, message, event.rest)

    def incomplete(self, held: Held, message: End, parts: list[Chunk]) -> str:
        if not 0 <= message.slice < message.slices:
            return f"there is no slice {message.slice} of {message.slices}"
        if not parts or sum(len(part.rows) for part in parts) != message.count:
            return "rows are missing"
        is_new = held.replica in routing.new_only(self._node.topology.partitions[held.partition])
        # A replica that was filled in this epoch and is read by now is no longer being filled.
        is_filled = is_new and held.begun == message.epoch
        if is_filled and message.through < held.base:
            return "the copy is older than where this replica begins"
        if not is_filled and message.through > held.watermark:
            return "the copy is ahead of this replica: a read would see half of a batch"
        return ""

    def _landed(
        self, now: float, held: Held, sender: str, message: End, ticket: int, beginnings: int
    ) -> None:
        """The slice is durable. It counts only if the session is still open and the replica was not
        emptied since."""
        del held.permits[ticket]
        self._node.changed.mark(held.partition)
        permitted = self.permit(message.partition, message.session, message.epoch)
        if not permitted or held.beginnings != beginnings:
            return
        landed = self.landed_of(held, message)
        landed.add(message.slice)
        self._node.send(sender, _landed(message, self._node.pace.pause_seconds(now)))
        if all(number in landed for number in range(message.slices)):
            held.copied = message.session

    def landed_of(self, held: Held, message: End) -> set[int]:
        """Slices of the same division: another mover may divide the range differently."""
        return held.landed.setdefault((message.session, message.slices), set())

    def link(self, now: float, sender: str, message: Link) -> None:
        """A copy inside this node. A request that is late or duplicated changes nothing."""
        held = self._node.held.get((message.partition, message.to))
        source = self._node.held.get((message.partition, message.source))
        if held is None or source is None or held.permits or held.copied == message.session:
            return
        permitted = self.permit(message.partition, message.session, message.epoch)
        if not permitted or held.matched != message.epoch:
            return  # too late, or too early: the owner will empty the replica
        ticket = next(self._node.tickets)
        self._links[ticket] = (held, source, message, held.begun)
        held.permits[ticket] = message.session
        self._node.out.append(LinkRows(message.partition, message.to, ticket, message.source))

    def rows_linked(self, now: float, event: RowsLinked) -> None:
        """Store the producers, too; then the copy is complete, as if its only slice had landed."""
        linking = self._links.pop(event.ticket, None)
        if linking is None:
            return
        held, source, link, begun = linking
        del held.permits[event.ticket]
        self._node.changed.mark(held.partition)
        if not self._still_links(held, link, begun):
            return
        if event.through is None:
            held.trouble = "unlinkable"  # so the pipeline copies its rows instead
            return
        if event.through < held.base:
            return  # rows in between are missing; the coordinator will ask again
        producers = source.producers.value(event.through)
        held.producers.unite(producers)
        ticket = self._node.when_stored(held, lambda now: self._linked(held, link, begun, ticket))
        held.permits[ticket] = link.session
        self._node.out.append(
            ApplySlice(held.partition, held.replica.incarnation, ticket, (), producers)
        )

    def _linked(self, held: Held, link: Link, begun: int, ticket: int) -> None:
        del held.permits[ticket]
        self._node.changed.mark(held.partition)
        if self._still_links(held, link, begun):
            held.copied = link.session

    def _still_links(self, held: Held, link: Link, begun: int) -> bool:
        """The session is open, and the target exists and was not emptied in the meantime."""
        is_held = self._node.held.get((held.partition, held.replica.incarnation)) is held
        permitted = self.permit(link.partition, link.session, link.epoch)
        return is_held and permitted and held.begun == begun

    def _deny(self, sender: str, message: Fetch | Chunk | End, why: str) -> None:
        slices = 0 if isinstance(message, Chunk) else message.slices
        denied = Denied(message.partition, message.session, message.slice, why, slices)
        self._node.send(sender, denied)


def _landed(message: End, pause_seconds: float) -> Landed:
    what = (message.partition, message.session, message.slice, message.slices)
    return Landed(*what, pause_seconds)


def _is_same(one: End, other: End) -> bool:
    """The same slice of the same copy, perhaps in another attempt."""
    return (one.session, one.slices, one.slice) == (other.session, other.slices, other.slice)
