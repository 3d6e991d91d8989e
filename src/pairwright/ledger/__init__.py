"""The ledger: what training did with every generated token, with sums that are checked."""

from pairwright.ledger.accounts import Account, Fate
from pairwright.ledger.build_ledger import Ledger, LedgerError, build_ledger, train_folders

__all__ = ["Account", "Fate", "Ledger", "LedgerError", "build_ledger", "train_folders"]
