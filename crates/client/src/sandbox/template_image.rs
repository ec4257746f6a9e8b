//! A template of a server as an image.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use isopod_guest_client::transport::{Http, Query, empty_body, encode, read_limited};

use super::{ApiError, Client};

/// The server packs the whole image before it answers.
const PACK_TIMEOUT: Duration = Duration::from_secs(3600);
const MAX_ERROR: usize = 1 << 20;

/// An image that is being downloaded: an OCI layout as a tar archive.
#[derive(Debug)]
pub struct TemplateImage {
    http: Http,
    body: Incoming,
    size: Option<u64>,
    digest: Option<String>,
}

impl Client {
    /// Exports a template as an image. `name` is the image's name in the archive, by default the template's. `squash`
    /// combines all layers into one. Only Isopod's servers support this.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] if the template cannot be an image.
    pub async fn export_template(
        &self,
        template: &str,
        name: Option<&str>,
        squash: bool,
    ) -> Result<TemplateImage, ApiError> {
        let http = self.http();
        let query = Query::new().with_some("name", name).with_some("squash", squash.then_some("true"));
        let path = query.behind(&format!("/isopod/templates/{}/image", encode(template)));
        let request = http.request(Method::GET, &path, HeaderMap::new(), empty_body())?;
        let reply = http.within(PACK_TIMEOUT, async { Ok::<_, ApiError>(http.send(request).await?) }).await?;
        let (head, body) = reply.into_parts();
        if !head.status.is_success() {
            let body = read_limited(body, MAX_ERROR).await.map_err(|error| http.broken(error))?;
            return Err(ApiError::from_reply(head.status, &head.headers, &body));
        }
        let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
        let size = text(header::CONTENT_LENGTH.as_str()).and_then(|size| size.parse().ok());
        let digest = text("docker-content-digest").map(str::to_owned);
        Ok(TemplateImage { http: http.clone(), body, size, digest })
    }
}

impl TemplateImage {
    /// The size of the archive.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// The digest of the image's manifest.
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    /// Returns the next piece of the archive, or `None` at its end.
    ///
    /// # Errors
    /// If the connection broke before the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame.map_err(|error| self.http.broken(error))?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}
