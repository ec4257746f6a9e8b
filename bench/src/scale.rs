//! The amount of measurements: enough for reliable results, or just enough to see that it works.

use std::time::Duration;

/// The sizes of the workloads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// Creates per row.
    pub(crate) creates: usize,
    /// How long a pool is idle before it counts as aged.
    pub(crate) age: Duration,
    /// How long creates and kills continue.
    pub(crate) churn: Duration,
    /// Concurrent sandboxes.
    pub(crate) crowd: usize,
    /// Sandboxes with a file watch among them.
    pub(crate) watched: usize,
    /// Mebibytes per stream.
    pub(crate) stream_mib: usize,
    /// How often each stream is measured.
    pub(crate) streams: usize,
    /// Calls through the SDK per row.
    pub(crate) sdk_calls: usize,
    /// Builds of the code interpreter's template.
    pub(crate) template_builds: usize,
    /// Concurrent workflow runs.
    pub(crate) workflow_runs: usize,
    /// Nodes in a chain of agents.
    pub(crate) workflow_chain: usize,
    /// Sandboxes that are paused at the same time, with their memory on disk.
    pub(crate) saved: usize,
    /// How long the service is under load.
    pub(crate) load: Duration,
}

impl Scale {
    pub(crate) const FULL: Self = Self {
        creates: 200,
        age: Duration::from_secs(60),
        churn: Duration::from_secs(10),
        crowd: 1000,
        watched: 300,
        stream_mib: 256,
        streams: 5,
        sdk_calls: 200,
        template_builds: 3,
        workflow_runs: 200,
        workflow_chain: 300,
        saved: 100,
        load: Duration::from_secs(60),
    };

    pub(crate) const QUICK: Self = Self {
        creates: 30,
        age: Duration::from_secs(5),
        churn: Duration::from_secs(3),
        crowd: 100,
        watched: 30,
        stream_mib: 64,
        streams: 2,
        sdk_calls: 30,
        template_builds: 1,
        workflow_runs: 20,
        workflow_chain: 50,
        saved: 10,
        load: Duration::from_secs(5),
    };
}
