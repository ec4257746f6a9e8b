//! Requests into a sandbox: to its guest (files, processes), to its code interpreter, to any port. They take the same
//! way as those of other clients, with the tokens that the API gives to the signed-in user.

use axum::body::Body;
use http::{HeaderName, HeaderValue, Method, Request, Response, header};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::{Api, encode, read};
use crate::failure::Failure;

/// The port of the guest's own API.
pub(crate) const GUEST: u16 = isopod_wire::GUEST_PORT;

/// A sandbox of the user, with what opens it.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    api: Api,
    id: String,
    /// `None` if the sandbox is not secured.
    token: Option<String>,
    /// What the API says about the sandbox.
    pub(crate) details: Details,
}

/// A sandbox as the API shows it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Details {
    #[serde(rename = "templateID")]
    pub(crate) template: String,
    #[serde(default)]
    pub(crate) alias: Option<String>,
    pub(crate) started_at: String,
    pub(crate) end_at: String,
    pub(crate) cpu_count: u32,
    #[serde(rename = "memoryMB")]
    pub(crate) memory_mb: u64,
    #[serde(rename = "diskSizeMB", default)]
    pub(crate) disk_size_mb: u64,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) metadata: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    envd_access_token: Option<String>,
    /// Everything else, such as the network's rules.
    #[serde(flatten)]
    pub(crate) rest: serde_json::Map<String, Value>,
}

impl Guest {
    /// Finds a sandbox of the user.
    pub(crate) async fn find(api: &Api, id: &str) -> Result<Self, Failure> {
        let mut details: Details = api.get(&format!("/sandboxes/{}", encode(id))).await?;
        let token = details.envd_access_token.take();
        Ok(Self { api: api.clone(), id: id.to_owned(), token, details })
    }

    /// Calls a method of the guest's RPC services, such as `filesystem.Filesystem/ListDir`.
    pub(crate) async fn call<T: DeserializeOwned>(&self, method: &str, body: Value) -> Result<T, Failure> {
        let request = Request::post(format!("/{method}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()))
            .map_err(|_| Failure::bad_request("this can't be sent to a sandbox"))?;
        let (_, body) = read(self.send(GUEST, request).await?).await?;
        serde_json::from_slice(&body).map_err(|_| Failure::unexpected("the sandbox"))
    }

    /// Sends any request to a port. The answer may be a refusal, and comes from the sandbox: nothing in it is to be
    /// trusted.
    pub(crate) async fn send(&self, port: u16, mut request: Request<Body>) -> Result<Response<Body>, Failure> {
        let headers = request.headers_mut();
        let mut set = |name: &'static str, value: &str| -> Result<(), Failure> {
            let value = HeaderValue::from_str(value).map_err(|_| Failure::bad_request("this is not a sandbox"))?;
            headers.insert(HeaderName::from_static(name), value);
            Ok(())
        };
        set("e2b-sandbox-id", &self.id)?;
        set("e2b-sandbox-port", &port.to_string())?;
        if let Some(token) = &self.token {
            set("x-access-token", token)?;
        }
        Ok(self.api.send_inside(request).await)
    }

    /// Reads a file, as a stream.
    pub(crate) async fn read_file(&self, path: &str) -> Result<Response<Body>, Failure> {
        let request = Request::builder().method(Method::GET).uri(format!("/files?path={}", encode(path)));
        let request = request.body(Body::empty()).map_err(|_| Failure::bad_request("this is not a path"))?;
        self.send(GUEST, request).await
    }
}
