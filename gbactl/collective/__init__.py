"""All-reduce behind one small interface: Horovod, torch.distributed (Gloo), shared memory, threads of one process."""

from gbactl.collective.base import Buckets, Collective, SingleRankCollective, all_reduce_sum
from gbactl.collective.factory import connect, open_rendezvous

__all__ = ["Buckets", "Collective", "SingleRankCollective", "all_reduce_sum", "connect", "open_rendezvous"]
