//! `/api/v1/fragments/published`: short URLs for previews.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use http::request::Parts;
use isopod_api::{
    ApiError, Caller, ClientNetwork, Created, Empty, JsonBody, NoContent, NoParams, Query, address_of, scheme_of,
};
use isopod_store::clock::Timestamp;
use isopod_store::service::ShortUrl;
use isopod_wire::SandboxId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::fragments::preview_url;
use crate::Access;
use crate::Service;
use crate::short_url::{NewShortUrl, PublishedPort};

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PublishFragment)]
pub(super) struct PublishBody {
    #[schema(min_length = 1, max_length = 128)]
    sbx_id: String,
    /// The preview's URL. Either this or `port` must be given.
    #[schema(max_length = 2048)]
    url: Option<String>,
    #[schema(minimum = 1, maximum = 65535)]
    port: Option<u16>,
    /// How long the URL and the sandbox live: a number with ms, s, m, h or d, and at most a day. An hour by default.
    #[schema(pattern = "^[0-9]{1,9}(ms|s|m|h|d)$")]
    duration: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PublishedFragment)]
pub(super) struct PublishedView {
    id: String,
    /// The short URL.
    url: String,
    /// Where it leads.
    target: String,
    #[schema(value_type = String)]
    sbx_id: SandboxId,
    created_at: Timestamp,
    expires_at: Timestamp,
}

#[derive(Serialize, ToSchema)]
#[schema(as = PublishedFragments)]
pub(super) struct PublishedList {
    published: Vec<PublishedView>,
}

const HOUR: Duration = Duration::from_secs(3600);
const MAX_DURATION: Duration = Duration::from_secs(24 * 3600);
const MAX_URL: usize = 2048;
const MAX_LISTED: u32 = 1000;

pub(super) async fn publish(
    State(service): State<Arc<Service>>,
    caller: Caller,
    parts: Parts,
    body: JsonBody<PublishBody>,
) -> Result<Created<PublishedView>, ApiError> {
    let from = ClientNetwork::of(address_of(&parts));
    let wanted = body.parse()?.checked(from)?;
    let url = service.publish(&Access::from(&caller), wanted).await?;
    Ok(Created(view(&service, &parts, url).await))
}

pub(super) async fn list(
    State(service): State<Arc<Service>>,
    caller: Caller,
    parts: Parts,
    _: Query<NoParams>,
) -> Result<Json<PublishedList>, ApiError> {
    let access = Access::from(&caller);
    let (team, agent) = (access.team_filter(), access.agent_filter(None)?);
    let urls = service.store.list_short_urls(team.as_ref(), agent.as_deref(), MAX_LISTED).await?;
    let mut published = Vec::with_capacity(urls.len());
    for url in urls {
        published.push(view(&service, &parts, url).await);
    }
    Ok(Json(PublishedList { published }))
}

pub(super) async fn unpublish(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<NoContent, ApiError> {
    service.unpublish(&Access::from(&caller), &id).await?;
    Ok(Empty)
}

async fn view(service: &Service, parts: &Parts, url: ShortUrl) -> PublishedView {
    // The backend may have forgotten a sandbox that has ended.
    let host = service.backend.host(&url.sandbox, url.port).await.ok().flatten();
    let target = preview_url(service, parts, &url.sandbox, url.port, host.as_deref());
    PublishedView {
        url: format!("{}://{}/s/{}", scheme_of(parts), service.domain, url.id),
        target: target + &url.path,
        id: url.id,
        sbx_id: url.sandbox,
        created_at: url.created_at,
        expires_at: url.expires_at,
    }
}

impl PublishBody {
    fn checked(self, from: ClientNetwork) -> Result<NewShortUrl, ApiError> {
        let (port, path) = match (self.port, self.url) {
            (Some(port), None) => (PublishedPort::Number(port), "/".to_owned()),
            (None, Some(url)) => {
                let (host, path) = split_url(&url)?;
                (PublishedPort::Host(host), path)
            }
            _ => return Err(ApiError::bad_request("send either url or port")),
        };
        let duration = self.duration.as_deref().map_or(Ok(HOUR), parse_duration)?;
        Ok(NewShortUrl { sandbox: self.sbx_id, port, path, duration, from })
    }
}

/// The host of a URL, and its path with the query. Only plain characters can come into a header.
fn split_url(url: &str) -> Result<(String, String), ApiError> {
    let wrong = || ApiError::bad_request("url must be an http or https URL of at most 2048 plain characters");
    let is_plain = url.len() <= MAX_URL && url.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")).filter(|_| is_plain);
    let rest = rest.ok_or_else(wrong)?.split('#').next().unwrap_or_default();
    let (host, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if host.is_empty() || host.contains('@') {
        return Err(wrong());
    }
    let slash = if path.starts_with('/') { "" } else { "/" };
    Ok((host.to_owned(), format!("{slash}{path}")))
}

/// A number with a unit, as in `30m`.
fn parse_duration(text: &str) -> Result<Duration, ApiError> {
    let wrong = || ApiError::bad_request("duration must be a number with ms, s, m, h or d, such as 30m, up to a day");
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?);
    let factor = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    let millis = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(wrong)?;
    let duration = Duration::from_millis(millis);
    if (Duration::from_secs(1)..=MAX_DURATION).contains(&duration) { Ok(duration) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_end_after_a_day() {
        let parsed = |text| parse_duration(text).ok().map(|duration| duration.as_secs());
        assert_eq!(parsed("1500ms"), Some(1));
        assert_eq!(
            (parsed("30s"), parsed("30m"), parsed("6h"), parsed("1d")),
            (Some(30), Some(1800), Some(21600), Some(86400))
        );
        for bad in ["", "30", "m", "0s", "999ms", "25h", "2d", "-1h", "1.5h", "1 h", "99999999999999999999d", "1w"] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_url_is_split_into_host_and_path() {
        let split = |url| split_url(url).map_err(drop);
        let of = |host: &str, path: &str| Ok((host.to_owned(), path.to_owned()));
        assert_eq!(split("https://3000-i1.box.example"), of("3000-i1.box.example", "/"));
        assert_eq!(split("http://80-i1.localhost:3000/a?b=c#d"), of("80-i1.localhost:3000", "/a?b=c"));
        assert_eq!(split("http://80-i1.localhost?x"), of("80-i1.localhost", "/?x"));
        let bad = [
            "javascript:alert(1)",
            "//x",
            "https://",
            "https://a@b/",
            "https://a\\@b",
            "https://a/\r\nx: y",
            "ftp://a",
            "https://ä",
        ];
        for bad in bad {
            assert_eq!(split(bad), Err(()), "{bad}");
        }
    }
}
