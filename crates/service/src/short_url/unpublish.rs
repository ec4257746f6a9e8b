//! Removes a short URL. The sandbox lives on.

use crate::access::{Access, Operation};
use crate::{Service, ServiceError};

impl Service {
    pub(crate) async fn unpublish(&self, access: &Access, id: &str) -> Result<(), ServiceError> {
        let found = self.store.find_short_url(id).await?;
        let url = found.ok_or_else(|| ServiceError::not_found("link", id))?;
        let checked = access.check(Operation::Write, &url.team, url.agent.as_deref());
        checked.map_err(|denied| denied.error("link", id))?;
        Ok(self.store.remove_short_url(id).await?)
    }
}
