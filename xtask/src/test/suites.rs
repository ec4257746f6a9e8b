//! What runs beside the test binaries: documentation tests, the Python suites, chaos and fuzzing.

use super::Tier;
use super::lanes::ALONE;

/// A suite. Its full name is `suite::NAME`.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) tier: Tier,
    pub(crate) program: Program,
    pub(crate) arguments: &'static [&'static str],
    /// One of our programs to pass, with this option.
    pub(crate) given: Option<(&'static str, &'static str)>,
    /// The option that selects cases.
    pub(crate) choose: Option<&'static str>,
    /// Suites of a group never run at the same time.
    pub(crate) group: Option<&'static str>,
    /// An estimate of its time, for a machine that has never run it.
    pub(crate) seconds: u32,
    /// Whether it is too heavy for every change.
    pub(crate) needs_full: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Cargo,
    Python,
    /// This program itself.
    Xtask,
}

const ISOPOD: Option<(&str, &str)> = Some(("--isopod", "isopod"));

const PLAIN: Suite = Suite {
    name: "",
    tier: Tier::Unit,
    program: Program::Python,
    arguments: &[],
    given: None,
    choose: None,
    group: None,
    seconds: 10,
    needs_full: false,
};

pub(crate) const SUITES: &[Suite] = &[
    Suite { name: "doc", program: Program::Cargo, arguments: &["test", "--workspace", "--doc", "--quiet"], ..PLAIN },
    Suite { name: "sdk-parts", tier: Tier::Fake, arguments: &["tests/sdk/test_pure.py"], ..PLAIN },
    Suite { name: "frameworks-parts", tier: Tier::Fake, arguments: &["tests/frameworks/test_pure.py"], ..PLAIN },
    Suite { name: "programs-parts", tier: Tier::Fake, arguments: &["tests/programs/test_pure.py"], ..PLAIN },
    Suite { name: "fresh-parts", tier: Tier::Fake, arguments: &["tests/fresh/test_pure.py"], ..PLAIN },
    Suite { name: "chaos-parts", tier: Tier::Fake, arguments: &["tests/chaos/test_pure.py"], ..PLAIN },
    Suite { name: "driver", tier: Tier::Fake, arguments: &["crates/guest/driver/tests/run.py"], seconds: 60, ..PLAIN },
    Suite {
        name: "openapi",
        tier: Tier::Fake,
        arguments: &["tests/openapi/run.py"],
        given: Some(("--server", "fake_server")),
        seconds: 90,
        ..PLAIN
    },
    Suite {
        name: "sdk",
        tier: Tier::Sdk,
        arguments: &["tests/sdk/run.py"],
        given: ISOPOD,
        choose: Some("--only"),
        seconds: 400,
        ..PLAIN
    },
    Suite {
        name: "env",
        tier: Tier::Sdk,
        arguments: &["tests/env/run.py"],
        given: ISOPOD,
        choose: Some("--only"),
        seconds: 60,
        ..PLAIN
    },
    Suite {
        name: "mcp",
        tier: Tier::Sdk,
        arguments: &["tests/mcp/run.py"],
        given: ISOPOD,
        choose: Some("--only"),
        seconds: 120,
        ..PLAIN
    },
    Suite {
        name: "docs",
        tier: Tier::Sdk,
        arguments: &["tests/docs/run.py"],
        given: ISOPOD,
        choose: Some("--only"),
        seconds: 60,
        ..PLAIN
    },
    // Three frameworks; with `ISOPOD_FULL`, all.
    Suite {
        name: "frameworks",
        tier: Tier::Sdk,
        arguments: &["tests/frameworks/run.py"],
        given: ISOPOD,
        choose: Some("--only"),
        seconds: 60,
        ..PLAIN
    },
    Suite { name: "seeds", tier: Tier::Sdk, arguments: &["tests/seeds/run.py"], given: ISOPOD, seconds: 60, ..PLAIN },
    Suite {
        name: "seeds-storage",
        tier: Tier::Sdk,
        arguments: &["tests/seeds/storage.py"],
        given: ISOPOD,
        seconds: 40,
        ..PLAIN
    },
    Suite {
        name: "agent-service",
        tier: Tier::Sdk,
        arguments: &["tests/agent_service/run.py"],
        given: ISOPOD,
        choose: Some("--only"),
        seconds: 30,
        ..PLAIN
    },
    Suite {
        name: "python",
        tier: Tier::Sdk,
        arguments: &["python/tests/run.py"],
        given: ISOPOD,
        choose: Some("--only"),
        seconds: 100,
        ..PLAIN
    },
    // 40 rounds; with `ISOPOD_FULL`, 500.
    Suite { name: "memory", tier: Tier::Sdk, arguments: &["tests/memory/run.py"], given: ISOPOD, seconds: 40, ..PLAIN },
    Suite {
        name: "templates",
        tier: Tier::Sdk,
        arguments: &["tests/templates/run.py"],
        given: ISOPOD,
        choose: Some("--only"),
        seconds: 200,
        ..PLAIN
    },
    Suite {
        name: "fragments",
        tier: Tier::Sdk,
        arguments: &["tests/fragments/run.py"],
        given: ISOPOD,
        choose: Some("--only"),
        seconds: 30,
        ..PLAIN
    },
    Suite {
        name: "dashboard",
        tier: Tier::Sdk,
        arguments: &["tests/dashboard/run.py"],
        given: ISOPOD,
        choose: Some("--only"),
        seconds: 60,
        ..PLAIN
    },
    Suite {
        name: "languages",
        tier: Tier::Sdk,
        arguments: &["tests/languages/run.py"],
        given: ISOPOD,
        choose: Some("--only"),
        // It builds a template with R and a JDK.
        needs_full: true,
        seconds: 600,
        ..PLAIN
    },
    Suite {
        name: "desktop",
        tier: Tier::Sdk,
        arguments: &["tests/desktop/run.py"],
        given: ISOPOD,
        choose: Some("--only"),
        // Its template downloads hundreds of megabytes.
        needs_full: true,
        seconds: 240,
        ..PLAIN
    },
    Suite {
        name: "programs",
        tier: Tier::Sdk,
        arguments: &["tests/programs/run.py"],
        given: ISOPOD,
        choose: Some("--only"),
        // It downloads more than a gigabyte of packages.
        needs_full: true,
        seconds: 1800,
        ..PLAIN
    },
    Suite {
        name: "chaos",
        tier: Tier::Stress,
        arguments: &["tests/chaos/run.py", "--seed", "43", "--minutes", "2"],
        given: ISOPOD,
        // Its checks give a killed server 30 s. Beside a build, one needed more.
        group: Some(ALONE),
        seconds: 180,
        ..PLAIN
    },
    Suite {
        name: "fresh",
        tier: Tier::Real,
        arguments: &["tests/fresh/run.py"],
        choose: Some("--only"),
        // It makes whole systems, and builds and tests everything on each.
        needs_full: true,
        group: Some(ALONE),
        seconds: 14_400,
        ..PLAIN
    },
    // One boot of one machine; with `ISOPOD_FULL`, three of each.
    Suite {
        name: "machine",
        tier: Tier::Sdk,
        arguments: &["tests/machine/run.py"],
        given: ISOPOD,
        choose: Some("--only"),
        // It emulates a machine with both processors, which programs beside it would feel.
        group: Some(ALONE),
        seconds: 240,
        ..PLAIN
    },
    Suite {
        name: "upgrade",
        tier: Tier::Stress,
        arguments: &["tests/upgrade/run.py"],
        given: ISOPOD,
        choose: Some("--only"),
        // It builds earlier commits of this program.
        needs_full: true,
        group: Some(ALONE),
        seconds: 1200,
        ..PLAIN
    },
    Suite { name: "fuzz", tier: Tier::Stress, program: Program::Xtask, arguments: &["fuzz"], seconds: 70, ..PLAIN },
];
