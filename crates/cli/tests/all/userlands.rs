//! Other distributions than the one this was built on: `isopod` runs on root file systems made by mmdebstrap, with this
//! machine's kernel below them, and makes its sandboxes of them.
//!
//! By default Debian 13; `ISOPOD_FULL=1` takes all. They are kept between runs. Needs mmdebstrap and the archives.

use crate::userland;

use std::path::Path;

use isopod_testkit::require_root;
use userland::distributions;

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

#[test]
fn sandboxes_are_made_of_each_distribution_by_the_same_program() {
    require_root();
    for distribution in distributions() {
        let userland = distribution.kept();
        let script = "isopod doctor >&2
            isopod run --memory 256M --disk 64M -- sh -c '. /etc/os-release; echo $PRETTY_NAME; sudo id -u; grep -c MemTotal:.*262144 /proc/meminfo'
            isopod run -- sh -c 'echo changed | sudo tee /usr/share/changed && cat /usr/share/changed'
            test ! -e /usr/share/changed
            isopod uninstall --yes >&2";
        let output = userland.run(Path::new(BINARY), "/opt/isopod/isopod", script).ok();
        let lines: Vec<&str> = output.lines().collect();
        assert!(lines[0].starts_with(distribution.name), "{output}");
        assert_eq!(lines[1..], ["0", "1", "changed", "changed"], "{}", distribution.name);
        userland.assert_nothing_left();
    }
}

#[test]
fn a_frozen_base_is_a_copy_that_later_changes_of_the_host_do_not_reach() {
    require_root();
    for distribution in distributions() {
        let userland = distribution.kept();
        let script = "trap 'rm -f /usr/share/isopod-late' EXIT
            rm -f /usr/share/isopod-late
            isopod run --frozen -- sh -c '. /etc/os-release; echo $PRETTY_NAME; whoami'
            echo late > /usr/share/isopod-late
            isopod run --frozen -- sh -c 'cat /usr/share/isopod-late 2>/dev/null || echo frozen'
            isopod run -- cat /usr/share/isopod-late
            isopod run --frozen -- sh -c 'echo mine > /tmp/x; sudo cp /tmp/x /usr/bin/x && cat /usr/bin/x'
            isopod uninstall --yes >&2";
        let output = userland.run(Path::new(BINARY), "/opt/isopod/isopod", script).ok();
        let lines: Vec<&str> = output.lines().collect();
        assert!(lines[0].starts_with(distribution.name), "{output}");
        assert_eq!(lines[1..], ["user", "frozen", "late", "mine"], "{}", distribution.name);
        userland.assert_nothing_left();
    }
}
