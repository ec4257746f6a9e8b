//! `isopod doctor` on a machine where sandboxes work: it has tried every limit, and leaves nothing.

use isopod_testkit::StateDir;

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

#[test]
fn every_limit_was_tried_in_a_sandbox_and_bites() {
    let state = StateDir::new(BINARY);
    let finished = state.isopod().run(&["doctor", "--json"]);
    let findings: Vec<serde_json::Value> = serde_json::from_str(&finished.ok()).unwrap();
    let verdict_of = |what: &str| {
        let found = findings.iter().find(|finding| finding["what"] == what);
        found.unwrap_or_else(|| panic!("nothing about {what}: {findings:#?}"))["verdict"].clone()
    };
    for what in ["kernel", "cgroups", "boot clock", "sandbox", "memory limit", "cpu limit", "pids limit"] {
        assert_eq!(verdict_of(what), "ok", "{what}: {findings:#?}");
    }
    // A host without btrfs tools says so instead.
    if verdict_of("disk") == "ok" {
        assert_eq!(verdict_of("disk limit"), "ok", "{findings:#?}");
    }
    state.assert_nothing_left();
}

#[test]
fn people_get_a_line_for_each() {
    let state = StateDir::new(BINARY);
    let told = state.isopod().run(&["doctor"]).ok();
    for line in ["ok    memory limit bites: 128M of memory and no more", "ok    cpu limit    bites: a quarter of a CPU"]
    {
        assert!(told.contains(line), "{told}");
    }
    state.assert_nothing_left();
}
