//! Which server has what, as far as this server knows: bounded, fed by the answers of the database, and by requests that
//! went wrong. An entry may be stale: the server that gets a wrong request says so, and the entry is forgotten.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

/// Two generations: when the new one is full, the old one is dropped. What is used moves to the new one.
#[derive(Debug)]
pub(crate) struct Locations<K, V> {
    capacity: usize,
    maps: Mutex<Generations<K, V>>,
}

#[derive(Debug)]
struct Generations<K, V> {
    new: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K: Hash + Eq + Clone, V: Clone> Locations<K, V> {
    /// Holds at most this many entries.
    pub(crate) fn new(capacity: usize) -> Self {
        let maps = Mutex::new(Generations { new: HashMap::new(), old: HashMap::new() });
        Self { capacity, maps }
    }

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = maps.new.get(key) {
            return Some(value.clone());
        }
        let (key, value) = maps.old.remove_entry(key)?;
        self.put(&mut maps, key, value.clone());
        Some(value)
    }

    pub(crate) fn insert(&self, key: K, value: V) {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        maps.old.remove(&key);
        self.put(&mut maps, key, value);
    }

    pub(crate) fn forget(&self, key: &K) {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        maps.new.remove(key);
        maps.old.remove(key);
    }

    fn put(&self, maps: &mut Generations<K, V>, key: K, value: V) {
        if maps.new.len() >= self.capacity / 2 && !maps.new.contains_key(&key) {
            maps.old = std::mem::take(&mut maps.new);
        }
        maps.new.insert(key, value);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let maps = self.maps.lock().unwrap();
        maps.new.len() + maps.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_small_and_keeps_what_is_used() {
        let locations = Locations::new(100);
        locations.insert(0, "used");
        for key in 1..10_000 {
            assert_eq!(locations.get(&0), Some("used"), "{key}");
            locations.insert(key, "seldom");
            assert!(locations.len() <= 100);
        }
        assert_eq!(locations.get(&1), None);
        assert_eq!(locations.get(&9_999), Some("seldom"));
        locations.forget(&0);
        assert_eq!(locations.get(&0), None);
        locations.insert(9_999, "other");
        assert_eq!(locations.get(&9_999), Some("other"));
    }
}
