"""When does a lease count? While its key bears it, and nobody else has registered in between."""

from limosa.core.model.keys import LeaseId, Revision
from limosa.errors import LeaseLost
from limosa.ports import Metastore


def revision_of(store: Metastore, key: str) -> Revision:
    """The revision that guards a registration under the key; 0: nobody is registered."""
    entry = store.get(key)
    return 0 if entry is None else entry.revision


def renew(store: Metastore, key: str, lease: LeaseId) -> bool:
    """Renew the lease of a key. False: the lease has ended, or another lease holds the key."""
    try:
        store.renew(lease)
    except LeaseLost:
        return False
    entry = store.get(key)
    return entry is not None and entry.lease == lease
