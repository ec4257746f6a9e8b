//! Creates copies of running sandboxes.

use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};
use isopod_wire::SandboxId;
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::Call;
use super::create::whole_seconds;
use super::handle::Made;
use super::{ApiError, Client, Sandbox};

/// One item of the reply.
#[derive(Deserialize)]
struct Item {
    sandbox: Option<Made>,
    error: Option<Value>,
}

impl Client {
    /// Creates copies of a running sandbox, which goes on. Each copy has an id, tokens and a lifetime of its own. The
    /// result has one item per copy: the copy, or why there is none.
    ///
    /// # Errors
    /// If no copy was attempted: [`ApiError::NotFound`] if there is no such sandbox, [`ApiError::Conflict`] if it is
    /// paused or its memory cannot be saved.
    pub async fn fork(
        &self,
        sandbox: &SandboxId,
        count: u32,
        timeout: Option<Duration>,
    ) -> Result<Vec<Result<Sandbox, ApiError>>, ApiError> {
        let mut body = json!({ "count": count });
        if let Some(timeout) = timeout {
            body["timeout"] = json!(whole_seconds(timeout));
        }
        let call = Call::new(Method::POST, format!("/sandboxes/{sandbox}/fork")).json(&body).once(None);
        let items: Vec<Item> = self.call(call).await?.parse()?;
        Ok(items.into_iter().map(|item| self.copy_of(item)).collect())
    }

    fn copy_of(&self, item: Item) -> Result<Sandbox, ApiError> {
        match (item.sandbox, item.error) {
            (Some(made), _) => Sandbox::from_made(self, made),
            (None, error) => Err(error_of(&error.unwrap_or_default())),
        }
    }
}

/// The error that a create with this code and message would have returned.
fn error_of(error: &Value) -> ApiError {
    let code = error["code"].as_u64().and_then(|code| u16::try_from(code).ok());
    let status = code.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    ApiError::from_reply(status, &HeaderMap::new(), error.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_fails_like_a_create() {
        let full = error_of(&json!({ "code": 429, "message": "too many" }));
        assert!(matches!(&full, ApiError::RateLimited { message, .. } if message == "too many"), "{full:?}");
        assert!(matches!(error_of(&Value::Null), ApiError::Server { code: 500, .. }));
    }
}
