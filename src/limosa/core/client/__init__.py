"""What does a client do next? `handle(now, event) → effects`, in a session as in the simulator.

asked        what an application asks, what it is told, and the settings
operations   an operation, the parts of it, and the operations that are sent together
gathering    which small writes wait to be sent together
lanes        which unfinished writes go to a partition, and in which order
windows      how much may be under way to a node
brain        the state machine
"""

from limosa.core.client.asked import Asked, ClientEvent, ClientSettings, Finished, OperationOutcome
from limosa.core.client.brain import Client

__all__ = ["Asked", "Client", "ClientEvent", "ClientSettings", "Finished", "OperationOutcome"]
