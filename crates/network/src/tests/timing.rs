//! Measures how long a slot takes and prints it. Fails only if it takes far too long.

use std::time::Instant;

use super::*;

#[test]
fn a_hundred_slots_take_no_time() {
    on_a_host(|_| {
        let network = Network::open(config()).unwrap();
        let sandboxes: Vec<_> = (0..100).map(|_| new_netns()).collect();
        let plumbing = each(&sandboxes, |slot, netns| {
            network.plumb(slot, netns.as_fd()).unwrap();
        });
        let denying = policy(true, &["198.51.100.7"], &[]);
        let setting = each(&sandboxes, |slot, _| network.set_policy(slot, &denying).unwrap());
        let clearing = each(&sandboxes, |slot, _| network.clear_policy(slot).unwrap());
        let one_by_one = each(&sandboxes[..10], |slot, _| network.unplumb(slot).unwrap());
        let start = Instant::now();
        network.unplumb_all(&(10..100).map(Slot).collect()).unwrap();
        let together = start.elapsed();
        eprintln!("plumb {plumbing}; set policy {setting}; clear policy {clearing}");
        eprintln!("unplumb {one_by_one}; 90 at once {together:?}");
        assert!(network.plumbed_slots().unwrap().is_empty());
        network.close().unwrap();
    });
}

/// The median and the maximum time per sandbox.
fn each(sandboxes: &[OwnedFd], work: impl Fn(Slot, &OwnedFd)) -> String {
    let mut times: Vec<_> = (0..)
        .zip(sandboxes)
        .map(|(slot, netns)| {
            let start = Instant::now();
            work(Slot(slot), netns);
            start.elapsed()
        })
        .collect();
    times.sort();
    assert!(times[times.len() / 2] < Duration::from_secs(1));
    format!("p50 {:?} max {:?}", times[times.len() / 2], times[times.len() - 1])
}
