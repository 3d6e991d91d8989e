"""The ledger: for every token that a model generated, where it went in training, with sums that agree."""

from pairwright.ledger.accounts import Account, Fate
from pairwright.ledger.build_ledger import Ledger, LedgerError, build_ledger, train_folders

__all__ = ["Account", "Fate", "Ledger", "LedgerError", "build_ledger", "train_folders"]
