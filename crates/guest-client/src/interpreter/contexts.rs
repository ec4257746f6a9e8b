//! Contexts keep their variables from one run to the next.

use http::Method;
use serde::Deserialize;
use serde_json::json;

use super::Interpreter;
use crate::guest::GuestError;
use crate::transport::{Body, empty_body, encode, full_body, read_limited};

const MAX_REPLY: usize = 4 << 20;

/// A context with the state of code.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct CodeContext {
    /// Its id.
    pub id: String,
    /// Its language.
    pub language: String,
    /// Its working directory.
    pub cwd: String,
}

/// The contexts that a fork has made.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ForkedContexts {
    /// At least one.
    pub contexts: Vec<CodeContext>,
    /// Why the others were not made.
    pub errors: Vec<String>,
}

impl Interpreter {
    /// Creates a context. The defaults are Python and the user's home.
    ///
    /// # Errors
    /// If the interpreter does not support the language.
    pub async fn create_context(&self, language: Option<&str>, cwd: Option<&str>) -> Result<CodeContext, GuestError> {
        let mut wanted = json!({});
        if let Some(language) = language {
            wanted["language"] = language.into();
        }
        if let Some(cwd) = cwd {
            wanted["cwd"] = cwd.into();
        }
        let reply = self.exchange(Method::POST, "/contexts", full_body(wanted.to_string().into())).await?;
        parse(&reply)
    }

    /// Lists the contexts.
    ///
    /// # Errors
    /// If the interpreter cannot be reached.
    pub async fn list_contexts(&self) -> Result<Vec<CodeContext>, GuestError> {
        parse(&self.exchange(Method::GET, "/contexts", empty_body()).await?)
    }

    /// Restarts a context, which loses its state.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::guest::Code::NotFound) if there is none.
    pub async fn restart_context(&self, id: &str) -> Result<(), GuestError> {
        self.exchange(Method::POST, &format!("/contexts/{}/restart", encode(id)), empty_body()).await?;
        Ok(())
    }

    /// Makes contexts with the variables of a Python context: 1 to 20 of them. Waits for the cells that run or wait in it.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::guest::Code::NotFound) if there is none; another error if no context could be made.
    pub async fn fork_context(&self, id: &str, count: usize) -> Result<ForkedContexts, GuestError> {
        let body = full_body(json!({"count": count}).to_string().into());
        parse(&self.exchange(Method::POST, &format!("/contexts/{}/fork", encode(id)), body).await?)
    }

    /// Removes a context.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::guest::Code::NotFound) if there is none.
    pub async fn remove_context(&self, id: &str) -> Result<(), GuestError> {
        self.exchange(Method::DELETE, &format!("/contexts/{}", encode(id)), empty_body()).await?;
        Ok(())
    }

    async fn exchange(&self, method: Method, path: &str, body: Body) -> Result<bytes::Bytes, GuestError> {
        let request = self.request(method, path, body)?;
        let read = |reply| async {
            let reply = self.accept(reply).await?;
            Ok(read_limited(reply.into_body(), MAX_REPLY).await.map_err(|error| self.http.broken(error))?)
        };
        self.http.exchange(request, read).await
    }
}

fn parse<T: serde::de::DeserializeOwned>(reply: &[u8]) -> Result<T, GuestError> {
    serde_json::from_slice(reply).map_err(|error| GuestError::Protocol(format!("unreadable reply: {error}")))
}
