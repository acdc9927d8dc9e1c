"""What does a run do next? It starts moves, follows them, retries, rolls back, and ends.

All of it is computed from the agreed state, so a successor continues where the last coordinator
stopped.
"""

from limosa.core.coordinator.flights import Flights
from limosa.core.coordinator.run_ends import end, roll_back
from limosa.core.coordinator.run_moves import follow, try_again
from limosa.core.coordinator.run_starts import begin
from limosa.core.coordinator.view import ClusterView
from limosa.core.model.changes import Commit


def advance(view: ClusterView, flights: Flights) -> list[Commit]:
    """The next commits of the current run; none if the run waits or there is no run."""
    run = view.agreed.runs.get(view.agreed.rebalance.run)
    if run is None:
        return []
    flights.follow(view.agreed)
    commits = [follow(view, flights, move) for move in list(flights.open.values())]
    if view.agreed.rebalance.state == "cancelling":
        commits += [roll_back(view, move) for move in flights.open.values()]
    else:
        commits += [try_again(view, flights, move) for move in flights.failed.values()]
    commits.append(begin(view, run, flights))
    found = [commit for commit in commits if commit is not None]
    return [end(view, run)] if not found and is_over(view, flights) else found


def is_over(view: ClusterView, flights: Flights) -> bool:
    """Nothing is in flight, and nothing is left to begin or the run is cancelled."""
    if view.agreed.rebalance.state == "cancelling":
        return not flights.open
    return not (flights.open or flights.pending or flights.failed)
