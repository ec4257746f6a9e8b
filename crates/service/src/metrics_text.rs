//! The service's part of `/metrics`: its counters, and gauges from its rows.

use std::fmt::Write as _;
use std::time::Duration;

use isopod_store::StoreError;
use isopod_store::service::Status;

use super::Service;
use super::metrics::head;

/// Keys that expire within this time are reported.
const EXPIRY_NOTICE: Duration = Duration::from_secs(7 * 24 * 3600);

impl Service {
    /// The metrics of the service and its backend. If the store fails, the metrics from it are left out.
    pub async fn metrics_text(&self) -> String {
        let mut text = String::new();
        self.resilient.metrics().render(&mut text);
        match self.render_metrics().await {
            Ok(more) => text += &more,
            Err(error) => {
                tracing::warn!(
                    error = isopod_wire::error_chain(&error),
                    "could not read the service's metrics; leaving them out"
                );
            }
        }
        text
    }

    /// All counters and gauges.
    async fn render_metrics(&self) -> Result<String, StoreError> {
        let mut out = String::new();
        self.metrics.print(&mut out);
        self.print_sandboxes(&mut out).await?;
        let gauges = [
            ("isopod_audit_backlog", "Records waiting to be written.", self.recorder.backlog()),
            ("isopod_audit_lines_written", "Audit lines written since the start.", self.recorder.lines()),
        ];
        for (name, help, value) in gauges {
            head(&mut out, name, "gauge", help);
            let _ = writeln!(out, "{name} {value}");
        }
        let expiring = self.store.keys_that_expire(EXPIRY_NOTICE).await?;
        head(&mut out, "isopod_api_keys_expiring", "gauge", "Keys that expire within a week.");
        let _ = writeln!(out, "isopod_api_keys_expiring {expiring}");
        Ok(out)
    }

    async fn print_sandboxes(&self, out: &mut String) -> Result<(), StoreError> {
        let rows = self.store.live_service_sandboxes(&self.server).await?;
        let name = "isopod_service_sandboxes";
        head(out, name, "gauge", "Live sandboxes of the service on this server, by status.");
        for status in [Status::Creating, Status::Running, Status::Paused] {
            let count = rows.iter().filter(|row| row.status == status).count();
            let _ = writeln!(out, "{name}{{status=\"{}\"}} {count}", status.text());
        }
        Ok(())
    }
}
