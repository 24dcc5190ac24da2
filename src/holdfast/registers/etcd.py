"""A register in etcd, through the HTTP/JSON gateway that every server from 3.4 on has built in.

Rules
1. The document is at `<prefix>/<run id>/document`, and beside it `holder`, which is put in the
   same transaction and attached to a short lease. The token is the document's `mod_revision`.
2. The short lease is kept alive within each `set_state`, before the write. So a holder that is
   gone proves that the last successful `set_state` began longer ago than `holder_ttl_s`, or
   that its writer closed its register.
3. The document outlives its writers by `keep_s` and not for ever: it is attached to a long
   lease of its last writer.
4. All reads are linearizable. How the document is followed is in `registers.followed`.

Why the gateway, and no client library: gRPC costs an agent seven threads, 20 MB and 40 ms more
than this, and the one asyncio client that is kept (`aetcd`) stands on it; `etcd3gw`, over the
same gateway, costs as much for `requests`, and its watches need threads. Six calls with JSON
need neither. What the gateway cannot do is take the user's name from a certificate: a cluster
with users and client certificates wants certificates without a common name, and a password.

How it works: `set_state` is two requests, a keepalive and a transaction; every `keep_s / 3`
one more for the long lease. Watched is all that is under `<prefix>/<run id>/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from time import monotonic

from holdfast.registers.etcd_gateway import (
    EtcdWatch,
    Gateway,
    KeyEvent,
    Lease,
    Message,
    NotFound,
    Pair,
    RangeAnswer,
    TxnAnswer,
)
from holdfast.registers.followed import FollowedRegister, KnownDocument
from holdfast.registers.register import (
    RegisterRefused,
    RegisterSettings,
    RegisterUnreachable,
    Token,
)

DEFAULT_PREFIX = "/holdfast"
NO_REVISION = -1
"""A revision that no key has; zero would mean a missing key."""
PARTING_S = 0.8
"""Time that `close` may spend on revoking the lease."""


class EtcdRegister(FollowedRegister):
    """One document in etcd. For one thread at a time; `close` is for any."""

    def __init__(self, settings: RegisterSettings) -> None:
        folder = f"{folder_of(settings)}/"
        self._gateway = Gateway(settings)
        super().__init__(settings, self._gateway.http)
        self._document, self._holder = f"{folder}document".encode(), f"{folder}holder".encode()
        # All keys that begin with the folder: "0" is the character after "/".
        self._all = {"key": folder.encode(), "range_end": f"{folder[:-1]}0".encode()}
        self._short = Lease(self._gateway, ceil(settings.holder_ttl_s))
        self._long = Lease(self._gateway, ceil(settings.keep_s))
        self._is_long_in_use = False
        """Whether the document is attached to the long lease."""
        self._older: list[Lease] = []
        """Long leases to which nothing is attached any more."""
        self.holder_expired = False
        self._revision = 0
        """Of the whole etcd, as of the last read."""
        self._told_of: int | None = None
        """The token whose holder was reported as expired, so that it is not news again."""
        self._watch: EtcdWatch | None = None

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool]:
        """Set it. Where the document itself is gone, `(b"", None, False)`."""
        with self._in_use:
            deadline = self._http.deadline()
            # Of many who want the same place, only those who may get it take a lease.
            if self._short.number is None and not self._could_be_set(token, deadline):
                value, now = self._told() or (b"", None)
                return value, now, value == state
            try:
                answer = self._write(state, token, deadline)
            except NotFound:  # A lease ran out between its renewal and the write.
                self._short.number = self._long.number = None
                answer = self._write_again(state, token, deadline)
            return self._outcome(state, answer, deadline)

    def forget_after(self, seconds: float) -> None:
        """Attach the document to a lease of so long, and delete the holder.

        Does nothing where the document is not the one that was last seen here.
        """
        with self._in_use:
            deadline = self._http.deadline()
            if self._known is None:
                self._read(deadline)
            if self._known is None:
                return
            lease = Lease(self._gateway, max(1, ceil(seconds))).renew(deadline)
            put = {"key": self._document, "ignore_value": True, "lease": str(lease)}
            delete = {"key": self._holder}
            success: list[Message] = [{"request_put": put}, {"request_delete_range": delete}]
            try:
                self._transact(self._is_at(self._known.token), success, deadline)
                self._is_long_in_use = False
            except NotFound as error:
                raise RegisterUnreachable(str(error)) from None

    def keep_for(self, seconds: float) -> None:
        """Attach what is written from now on to a lease of so long."""
        if max(1, ceil(seconds)) != self._long.ttl_s:
            self._older.append(self._long)
            self._long = Lease(self._gateway, max(1, ceil(seconds)))
            self._is_long_in_use = False

    def close(self) -> None:
        """Give up the lease and the connections; waiting calls end with an error."""
        self._http.interrupt()
        with self._in_use:
            try:
                self._http.resume()
                self._short.revoke(monotonic() + PARTING_S)
                for lease in self._older if self._is_long_in_use else (*self._older, self._long):
                    lease.revoke(monotonic() + PARTING_S)
            except (RegisterUnreachable, RegisterRefused):
                pass  # It runs out by itself.
            finally:
                self._http.close()
                self._watch = None

    # --- reading --------------------------------------------------------------------------

    def _read(self, deadline: float) -> None:
        answer = self._gateway.call("/v3/kv/range", self._all, RangeAnswer, deadline)
        self._revision = answer.header.revision
        self._learn(answer.kvs)

    def _learn(self, pairs: list[Pair]) -> None:
        """From all keys that there are."""
        found = {pair.key: pair for pair in pairs}
        self._known = _known(found.get(self._document))
        self.holder_expired = self._known is not None and self._holder not in found

    def _told(self) -> tuple[bytes, Token] | None:
        if self._known is not None and self.holder_expired:
            self._told_of = self._known.token
        return super()._told()

    # --- writing --------------------------------------------------------------------------

    def _write(self, state: bytes, token: Token | None, deadline: float) -> TxnAnswer:
        if self._long.is_due():
            self._long.renew(deadline)
        lease = self._short.renew(deadline)
        document = {"key": self._document, "value": state, "lease": str(self._long.number)}
        holder = {"key": self._holder, "value": b"here", "lease": str(lease)}
        success = [{"request_put": document}, {"request_put": holder}]
        return self._transact(self._is_at(token), success, deadline)

    def _could_be_set(self, token: Token | None, deadline: float) -> bool:
        self._read(deadline)
        return token == (None if self._known is None else self._known.token)

    def _write_again(self, state: bytes, token: Token | None, deadline: float) -> TxnAnswer:
        try:
            return self._write(state, token, deadline)
        except NotFound as error:
            raise RegisterUnreachable(f"leases do not last: {error}") from None

    def _is_at(self, token: Token | None) -> Message:
        if token is None:
            return {"key": self._document, "target": "CREATE", "create_revision": "0"}
        revision = token if isinstance(token, int) and token > 0 else NO_REVISION
        return {"key": self._document, "target": "MOD", "mod_revision": str(revision)}

    def _transact(self, compare: Message, success: Sequence[Message], deadline: float) -> TxnAnswer:
        failure = [{"request_range": self._all}]
        message = {"compare": [compare], "success": success, "failure": failure}
        return self._gateway.call("/v3/kv/txn", message, TxnAnswer, deadline)

    def _outcome(
        self, state: bytes, answer: TxnAnswer, deadline: float
    ) -> tuple[bytes, Token, bool]:
        if answer.succeeded:
            self._known = KnownDocument(state, answer.header.revision)
        else:
            ranges = [r.response_range for r in answer.responses if r.response_range is not None]
            self._learn(ranges[0].kvs if ranges else [])
        if self._known is None:
            self._require_certainty()
            return b"", None, False
        # Where another server was asked first, it may have done what this one finds done.
        has_set = answer.succeeded or self._known.content == state
        if not has_set:
            self._require_certainty()
        if has_set:
            self.holder_expired, self._is_long_in_use, self._has_written = False, True, True
            self._confirm_lease(answer.header.raft_term, deadline)
        return self._known.content, self._known.token, has_set

    def _require_certainty(self) -> None:
        """Another writer's document may have replaced what an unanswered try of ours wrote."""
        if self._http.was_sent_before:
            raise RegisterUnreachable("a write was overtaken, or never done")

    def _confirm_lease(self, raft_term: int, deadline: float) -> None:
        """See to it that the lease was renewed by who leads now.

        A leader that does not know yet that it is none keeps leases alive that the others let
        run out; the write shows it, by the newer term that it was done in.
        """
        if self._short.raft_term >= raft_term:
            return
        holders = self._short.number
        if self._short.renew(deadline) != holders or self._short.raft_term < raft_term:
            raise RegisterUnreachable("the lease was kept alive by a leader of the past only")

    # --- watching -------------------------------------------------------------------------

    def _take_event(self, deadline: float) -> bool | None:
        answer = self._watching().next(deadline)
        if answer is None:
            return None
        if answer.canceled:  # What it should begin with is compacted away.
            self._stop_watching()
            self._read(self._http.deadline())
        for event in answer.events:
            self._follow(event)
        return answer.canceled

    def _is_news(self, token: Token | None, is_fresh: bool) -> bool:
        """Whether the document has changed, or the holder of the caller's version has expired."""
        if self._known is not None and self._known.token == token:
            return self.holder_expired and self._told_of != token
        return super()._is_news(token, is_fresh)

    def _follow(self, event: KeyEvent) -> None:
        known, pair = self._known, event.kv
        if known is not None and pair.mod_revision < known.token:
            return  # We have written since.
        is_there = event.type == "PUT"
        if pair.key == self._document:
            self._known = _known(pair if is_there else None)
        elif pair.key == self._holder:
            self.holder_expired = not is_there and known is not None

    def _watching(self) -> EtcdWatch:
        """The watch, which follows the last read."""
        if self._watch is None:
            request = {**self._all, "start_revision": str(self._revision + 1)}
            self._watch = self._gateway.watch(request, self._http.deadline())
            self._heard_at = monotonic()
        return self._watch

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def _known(pair: Pair | None) -> KnownDocument | None:
    return None if pair is None else KnownDocument(pair.value, pair.mod_revision)


def folder_of(settings: RegisterSettings) -> str:
    """The prefix of the run's keys: one level, and never that of another run."""
    from urllib.parse import quote

    prefix = settings.options.get("etcd_prefix", DEFAULT_PREFIX).strip("/")
    name = quote(settings.run_id, safe="")
    if not name.strip("."):
        name = name.replace(".", "%2E")
    return f"/{prefix}/{name}" if prefix else f"/{name}"
