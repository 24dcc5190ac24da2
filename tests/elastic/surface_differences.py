"""Where `holdfast.elastic` differs on purpose from PyTorch 2.13.0's modules, and why.

A line that says nothing true any more makes a test fail: what is here is needed.
"""

from __future__ import annotations

NO_POPEN = "the processes are a spawner's, and there is nothing of this kind to hold"
OLD_ETCD = "the insides of PyTorch's first rendezvous over etcd; ours is the dynamic one"
NO_STORE_OF_C10D = "of PyTorch's class for stores; over etcd it does nothing there but raise"
FILTERED = "where filtered lines go is said by the `LogsDest`"

WITHOUT_COUNTERPART: dict[str, str] = {
    "multiprocessing.subprocess_handler": NO_POPEN,
    "multiprocessing.subprocess_handler.handlers": NO_POPEN,
    "multiprocessing.subprocess_handler.subprocess_handler": NO_POPEN,
    "rendezvous._etcd_stub": "stands in for a package that is not needed here",
}
"""Modules of PyTorch's that are not here."""

LEFT_OUT: dict[str, str] = {
    "multiprocessing:MultiprocessContext.filtered_stderr": FILTERED,
    "multiprocessing:MultiprocessContext.filtered_stdout": FILTERED,
    "multiprocessing:PContext.filtered_stderr": FILTERED,
    "multiprocessing:PContext.filtered_stdout": FILTERED,
    "multiprocessing:SubprocessContext.filtered_stderr": FILTERED,
    "multiprocessing:SubprocessContext.filtered_stdout": FILTERED,
    "multiprocessing:SubprocessContext.subprocess_handlers": NO_POPEN,
    "multiprocessing.api:MultiprocessContext.filtered_stderr": FILTERED,
    "multiprocessing.api:MultiprocessContext.filtered_stdout": FILTERED,
    "multiprocessing.api:PContext.filtered_stderr": FILTERED,
    "multiprocessing.api:PContext.filtered_stdout": FILTERED,
    "multiprocessing.api:SubprocessContext.filtered_stderr": FILTERED,
    "multiprocessing.api:SubprocessContext.filtered_stdout": FILTERED,
    "multiprocessing.api:SubprocessContext.subprocess_handlers": NO_POPEN,
    "multiprocessing.api:IS_MACOS": "this is Linux",
    "multiprocessing.api:IS_WINDOWS": "this is Linux",
    "multiprocessing.api:get_std_cm": (
        "workers have their streams from their beginning; `redirects` is for a process's own"
    ),
    "multiprocessing.errors:JSON": "a name for annotations",
    "multiprocessing.redirects:IS_MACOS": "this is Linux",
    "multiprocessing.redirects:IS_WINDOWS": "this is Linux",
    "multiprocessing.redirects:get_libc": "`ctypes.CDLL(None)`, on Linux",
    "multiprocessing.redirects:libc": "as above",
    "rendezvous.dynamic_rendezvous:get_method_name": "names the caller in their events",
    "rendezvous.etcd_rendezvous:CONST_ETCD_FROZEN_TTL": OLD_ETCD,
    "rendezvous.etcd_rendezvous:CONST_ETCD_JOINABLE_EPHEMERAL_TTL": OLD_ETCD,
    "rendezvous.etcd_rendezvous:CONST_ETCD_SETUP_TTL": OLD_ETCD,
    "rendezvous.etcd_rendezvous:CONST_RUNID_SUBROOT_TTL": OLD_ETCD,
    "rendezvous.etcd_rendezvous:CONST_WORKER_KEEPALIVE_TTL": OLD_ETCD,
    "rendezvous.etcd_rendezvous:EtcdRendezvous": OLD_ETCD,
    "rendezvous.etcd_rendezvous:EtcdRendezvousRetryImmediately": OLD_ETCD,
    "rendezvous.etcd_rendezvous:EtcdRendezvousRetryableFailure": OLD_ETCD,
    "rendezvous.etcd_server:find_free_port": (
        "our server has ports that are held for it; see `utils.distributed`"
    ),
    "rendezvous.etcd_store:EtcdStore.barrier": NO_STORE_OF_C10D,
    "rendezvous.etcd_store:EtcdStore.clone": NO_STORE_OF_C10D,
    "rendezvous.etcd_store:EtcdStore.list_keys": NO_STORE_OF_C10D,
    "rendezvous.etcd_store:EtcdStore.queue_len": NO_STORE_OF_C10D,
    "rendezvous.etcd_store:EtcdStore.queue_pop": NO_STORE_OF_C10D,
    "rendezvous.etcd_store:EtcdStore.queue_push": NO_STORE_OF_C10D,
    "rendezvous.etcd_store:cas_delay": "waits by chance before another try; nothing here waits so",
    "utils.store:DistStoreError": "an error of PyTorch's own stores, which those still raise",
}
"""Names of modules, and members of classes, that are not here."""

DIFFERENT: dict[str, str] = {
    "multiprocessing.errors:ChildFailedError.format_msg": (
        "the report is that of `holdfast run`, and has no borders to choose"
    ),
    "multiprocessing.tail_log:TailLog": "the filter that shows every line is another function",
    "rendezvous.dynamic_rendezvous:DynamicRendezvousHandler": (
        "made of their private objects there; `from_backend` makes both"
    ),
    "rendezvous.etcd_rendezvous:EtcdRendezvousHandler": OLD_ETCD,
    "rendezvous.etcd_store:EtcdStore.add": (
        "the second is `value`, as in our other stores; there it is `num`"
    ),
    "rendezvous.etcd_store:EtcdStore.wait": (
        "`timeout`, as in all other stores; there it is `override_timeout`"
    ),
}
"""Signatures and values that code written for PyTorch's could notice."""
