//! A map as a sorted list.

use std::collections::VecDeque;
use std::collections::vec_deque::Iter;

/// A map for few entries, or for keys that come and go in order. It is translated for each pair of
/// types, as a `BTreeMap` is, and is far less code.
#[derive(Clone, Debug)]
pub(super) struct Sorted<K, V>(VecDeque<(K, V)>);

impl<K, V> Default for Sorted<K, V> {
    fn default() -> Sorted<K, V> {
        Sorted(VecDeque::new())
    }
}

impl<K: Ord + Copy, V> Sorted<K, V> {
    fn find(&self, key: K) -> Result<usize, usize> {
        self.0.binary_search_by_key(&key, |&(key, _)| key)
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        match self.find(key) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (key, value)),
        }
    }

    /// The value of this key; if there is none, the default is inserted.
    pub(super) fn entry(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let at = self.find(key).unwrap_or_else(|at| {
            self.0.insert(at, (key, V::default()));
            at
        });
        &mut self.0[at].1
    }

    pub(super) fn remove(&mut self, key: K) -> Option<V> {
        let at = self.find(key).ok()?;
        self.0.remove(at).map(|(_, value)| value)
    }

    pub(super) fn get(&self, key: K) -> Option<&V> {
        self.find(key).ok().map(|at| &self.0[at].1)
    }

    pub(super) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.find(key).ok().map(|at| &mut self.0[at].1)
    }

    pub(super) fn first(&self) -> Option<&(K, V)> {
        self.0.front()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All entries, in the order of their keys.
    pub(super) fn iter(&self) -> Iter<'_, (K, V)> {
        self.0.iter()
    }

    pub(super) fn keys(&self) -> impl ExactSizeIterator<Item = K> {
        self.0.iter().map(|&(key, _)| key)
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&V) -> bool) {
        self.0.retain(|(_, value)| keep(value));
    }
}
