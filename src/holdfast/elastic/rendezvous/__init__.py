"""The rendezvous of nodes: handlers, their registry, and what they hand to an agent.

A handler is asked for the next rendezvous and answers when the nodes of the job have met, with
a rank, a world size and a store that they share. Handlers of our own, and those that other
packages install, are found by name: `rendezvous.registry.get_rendezvous_handler`.
"""

from holdfast.elastic.rendezvous import registry as registry  # which registers our own handlers
from holdfast.elastic.rendezvous.api import *  # noqa: F403 - the names of `api`, and no others
from holdfast.elastic.rendezvous.api import __all__ as __all__
