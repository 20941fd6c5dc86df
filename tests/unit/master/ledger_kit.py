"""Invariants of the ledger in every state."""

from __future__ import annotations

from dljob.master.ledger.rules import account_of, micros
from dljob.master.state import ledger
from dljob.master.state.ledger import Account
from dljob.master.state.state import RankPhase


def check_ledger(state, now):
    """Assert that each rank is in the account of its state and that accounts sum up to exactly time x processes."""
    book = state.ledger
    at = max(book.at, micros(state, now))
    counts = {}
    present = [key for key, own in state.ranks.items() if own.phase is not RankPhase.ABSENT]
    assert set(book.clocks) == set(present)
    for key in present:
        account, since = book.clocks[key]
        assert account is account_of(state, key), key
        assert 0 <= since <= book.at
        assert (key in book.stalled) == (account is Account.STALLED) == (key in state.stalled)
        if account is Account.STALLED:
            assert book.stalled[key][0] is not Account.STALLED
            assert book.stalled[key][1] <= since
        counts[key[0], account] = counts.get((key[0], account), 0) + 1
    for (role, _node, _slot), spare in state.spares.items():
        if spare.phase.alive:
            counts[role, Account.SPARE] = counts.get((role, Account.SPARE), 0) + 1
    assert {key: entry.count for key, entry in book.books.items() if entry.count} == counts
    for role, facts in state.job.roles.items():
        sums = ledger.totals(book, role, at)
        assert all(total > 0 for total in sums.values()), sums
        spent = sum(total for account, total in sums.items() if account is not Account.SPARE)
        assert spent == ledger.rank_time(book, facts.plan.name, facts.plan.replicas, at)
        for account, lacking in ledger.counter_shortfalls(book, role, at).items():
            assert lacking > 0
            assert account is not Account.SPARE
    productive = [entry for (_, account), entry in book.books.items() if account is Account.PRODUCTIVE]
    assert book.productive.upto(at) == sum(entry.upto(at) for entry in productive)
    whole = sum(ledger.rank_time(book, name, facts.plan.replicas, at) for name, facts in state.job.roles.items())
    share = ledger.goodput(book, len(present), at, whole)
    for value in (share.overall, share.recent):
        assert value is None or 0 <= value <= 1
