//! Tells the agent services of an ended run to clean up. Each answer is recorded at once, so that a service that has
//! confirmed is not called again. A service that doesn't confirm before its deadline is recorded as failed.

use futures::{StreamExt as _, stream};
use isopod_store::{AgentService, RunId, ServiceCleanup, StoreError};

use super::shared::Shared;

const MAX_CONCURRENT: usize = 8;

/// Calls the services that have neither confirmed nor failed. Returns why some must be called again.
pub(super) async fn clean_up_services(shared: &Shared, run: &RunId) -> Result<Vec<String>, StoreError> {
    let services = shared.store.run_services(run).await?;
    let pending = services.into_iter().filter(|service| service.cleanup == ServiceCleanup::Pending);
    let calls = stream::iter(pending.map(|service| clean_up_service(shared, run, service.service)));
    let answers: Vec<Result<Option<String>, StoreError>> = calls.buffer_unordered(MAX_CONCURRENT).collect().await;
    answers.into_iter().filter_map(Result::transpose).collect()
}

/// Returns why the service must be called again.
async fn clean_up_service(shared: &Shared, run: &RunId, service: AgentService) -> Result<Option<String>, StoreError> {
    let Err(error) = shared.agents.clean_up(&service, run).await else {
        shared.store.confirm_service_cleanup(run, &service).await?;
        return Ok(None);
    };
    let error = isopod_wire::error_chain(&error);
    if shared.store.fail_service_cleanup(run, &service, &error, shared.cleanup_deadline).await? {
        let service = service.url().unwrap_or("the configured agent service");
        tracing::error!(%run, service, error, "an agent service did not clean up in time; giving up");
        return Ok(None);
    }
    Ok(Some(error))
}
