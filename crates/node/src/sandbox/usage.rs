//! The resource usage of a sandbox.

use std::sync::Arc;

use isopod_wire::node::{Incarnation, NodeError, Usage};

use super::Sandboxes;
use super::pause::failed;

impl Sandboxes {
    pub(crate) async fn usage(&self, incarnation: &Incarnation) -> Result<Usage, NodeError> {
        let sandbox = self.get(incarnation)?;
        let inner = sandbox.inner.lock().await;
        let cgroup = inner.processes.as_ref().map(|processes| processes.cgroup.clone());
        let area = inner.record.area.clone();
        drop(inner);
        let host = Arc::clone(&self.provisioner.host);
        let read = tokio::task::spawn_blocking(move || {
            let mut usage = cgroup.map_or(Ok(Usage::default()), |cgroup| cgroup.usage())?;
            let disk = area.and_then(|area| host.disk.usage(&area).ok());
            usage.disk = disk.and_then(|disk| disk.used).map_or(0, |bytes| bytes.0);
            let limit = disk.and_then(|disk| disk.limit).or_else(|| host.disk.free_space().ok());
            usage.disk_total = limit.map_or(0, |bytes| bytes.0);
            Ok::<_, isopod_isolation::cgroup::CgroupError>(usage)
        });
        let usage = read.await.map_err(|error| failed(&sandbox, "measure", error))?;
        usage.map_err(|error| failed(&sandbox, "measure", error))
    }
}
