"""What happened in this seed? It is run again, and its events are printed.

A story has the events of the partitions concerned, in virtual time: who did what. It includes all
faults, whichever partition they were aimed at, because faults affect processes.
"""

from collections.abc import Iterator

from msgspec import Struct

from limosa.simulation.run import run_seed
from limosa.simulation.swarm import SEED_SECONDS_MAX, TookTooLong, named, within
from limosa.simulation.world import World, WorldShape


class Story(Struct, frozen=True):
    """The events of one seed; `partitions` are all that exist, `end` is when the world stopped."""

    seed: int
    shape: WorldShape
    partitions: tuple[str, ...]
    lines: tuple[tuple[float, str, str], ...]
    violations: tuple[tuple[str, str], ...]
    end: float

    @property
    def concerned(self) -> tuple[str, ...]:
        """The partitions that the violations name; all of them if none is named."""
        accused = {partition for _, partition in self.violations}
        return tuple(name for name in self.partitions if name in accused) or self.partitions


def story_of(seed: int, seconds_max: float = SEED_SECONDS_MAX, real_storage: bool = False) -> Story:
    """Run the seed again; if it raises or never ends, the story has the events until then."""
    worlds: list[World] = []

    class Remembered(World):
        def __init__(self, seed: int, shape: WorldShape, telling: bool = False) -> None:
            worlds.append(self)
            super().__init__(seed, shape, telling)

    failure: list[tuple[str, str]] = []
    try:
        with within(seconds_max):
            run_seed(seed, telling=True, world_type=Remembered, real_storage=real_storage)
    except TookTooLong as error:
        failure.append((str(error), ""))
    except Exception as error:
        failure.append((f"raised {named(error)}", ""))
    world = worlds[0]
    return Story(
        seed,
        world.shape,
        tuple(world.agreed.topology.partitions),
        tuple(world.story),
        (*world.violations, *failure),
        world.now,
    )


def told(story: Story) -> str:
    """The story as text: the world, what happened, and how it ended."""
    return "\n".join([*_header(story), "", *_lines(story), "", *_footer(story)])


def _header(story: Story) -> Iterator[str]:
    shape, weather = story.shape, story.shape.weather
    yield (
        f"Seed {story.seed}: {_many(shape.nodes, 'node')}, {_many(shape.partitions, 'partition')} "
        f"of {_many(shape.replicas, 'replica')}, {_many(shape.clients, 'client')}; "
        f"a log keeps {_many(shape.entries_kept, 'entry', 'entries')}."
    )
    yield (
        f"Of its messages {weather.dropped:.1%} are dropped, {weather.doubled:.1%} doubled, "
        f"{weather.slow:.1%} slow, {weather.stuck:.1%} stuck."
    )
    hidden = [name for name in story.partitions if name not in story.concerned]
    if hidden:
        shown = ", ".join(story.concerned)
        yield f"Shown: {shown}, and all faults. Not shown: {', '.join(hidden)}."


def _lines(story: Story) -> Iterator[str]:
    hidden = set(story.partitions) - set(story.concerned)
    for time, partition, text in story.lines:
        who, _, what = text.partition(" ")
        if partition in hidden and who != "FAULT":
            continue
        where = partition if partition in story.partitions else ""
        what = what.replace(f": {partition}: ", ": ", 1) if where else what
        yield f"{time:10.4f}  {where:<4}{who:<9} {what}".rstrip()


def _footer(story: Story) -> Iterator[str]:
    for violation, partition in story.violations:
        yield f"VIOLATED{f' in {partition}' if partition else ''}: {violation}"
    if not story.violations:
        yield f"Nothing was violated; the world stopped at {story.end:.1f} s of virtual time."
    storage = " --storage real" if story.shape.real_storage else ""
    yield f"Replay it with: limosa simulate --seed {story.seed} --story{storage}"


def _many(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
