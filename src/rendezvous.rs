//! Ranks meet at the master and exchange a few bytes each.
