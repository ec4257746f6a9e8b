//! Lists sandboxes, page by page.

use std::collections::{BTreeMap, VecDeque};

use http::Method;
use isopod_guest_client::transport::{Query, encode};

use super::call::{Call, Reply};
use super::{ApiError, Client, SandboxInfo, SandboxState};

const NEXT_TOKEN: &str = "x-next-token";

/// Which sandboxes to list. The default is all of them, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListSandboxes {
    /// Only sandboxes in this state.
    pub state: Option<SandboxState>,
    /// Only sandboxes with all of these entries in their metadata.
    pub metadata: BTreeMap<String, String>,
    /// Only sandboxes of this template.
    pub template: Option<String>,
    /// The number of sandboxes per page, 1 to 100. The default is the server's.
    pub page_size: Option<u32>,
    /// Whether to list the oldest first.
    pub oldest_first: bool,
}

impl ListSandboxes {
    fn path(&self, token: Option<&str>) -> String {
        let state = match self.state {
            Some(SandboxState::Running) => Some("running"),
            Some(SandboxState::Paused) => Some("paused"),
            Some(SandboxState::Unknown) | None => None,
        };
        Query::new()
            .with_some("metadata", (!self.metadata.is_empty()).then(|| encode_metadata(&self.metadata)))
            .with_some("state", state)
            .with_some("template", self.template.as_deref())
            .with_some("order", self.oldest_first.then_some("asc"))
            .with_some("limit", self.page_size)
            .with_some("nextToken", token)
            .behind("/v2/sandboxes")
    }
}

/// Servers decode the pairs once more than the query, and the keys and values once more than the pairs.
fn encode_metadata(metadata: &BTreeMap<String, String>) -> String {
    let twice = |text: &str| encode(&encode(text));
    let pairs: Vec<String> = metadata.iter().map(|(key, value)| format!("{}={}", twice(key), twice(value))).collect();
    pairs.join("&")
}

impl Client {
    /// Lists the team's sandboxes. Sends nothing before the first page is requested.
    pub fn list(&self, which: ListSandboxes) -> SandboxPages {
        SandboxPages { client: self.clone(), which, position: Position::Start, fetched: VecDeque::new() }
    }
}

/// Pages of sandboxes, fetched on demand.
#[derive(Debug)]
pub struct SandboxPages {
    client: Client,
    which: ListSandboxes,
    position: Position,
    fetched: VecDeque<SandboxInfo>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Position {
    Start,
    After(String),
    End,
}

impl SandboxPages {
    /// Returns the next sandbox, or `None` after the last.
    ///
    /// # Errors
    /// If the next page cannot be fetched. Call it again to retry.
    pub async fn next(&mut self) -> Result<Option<SandboxInfo>, ApiError> {
        while self.fetched.is_empty() {
            match self.fetch().await? {
                Some(page) => self.fetched.extend(page),
                None => return Ok(None),
            }
        }
        Ok(self.fetched.pop_front())
    }

    /// Returns the next page, or the rest of the current one, or `None` after the last.
    ///
    /// # Errors
    /// If it cannot be fetched. Call it again to retry.
    pub async fn next_page(&mut self) -> Result<Option<Vec<SandboxInfo>>, ApiError> {
        if !self.fetched.is_empty() {
            return Ok(Some(self.fetched.drain(..).collect()));
        }
        self.fetch().await
    }

    /// Returns all remaining sandboxes.
    ///
    /// # Errors
    /// If a page cannot be fetched.
    pub async fn collect(mut self) -> Result<Vec<SandboxInfo>, ApiError> {
        let mut all = Vec::new();
        while let Some(page) = self.next_page().await? {
            all.extend(page);
        }
        Ok(all)
    }

    async fn fetch(&mut self) -> Result<Option<Vec<SandboxInfo>>, ApiError> {
        let token = match &self.position {
            Position::Start => None,
            Position::After(token) => Some(token.as_str()),
            Position::End => return Ok(None),
        };
        let reply = self.client.call(Call::new(Method::GET, self.which.path(token))).await?;
        let page = reply.parse()?;
        let next = position_after(&reply);
        if next == self.position {
            return Err(ApiError::Protocol("the server returns the same page repeatedly".to_owned()));
        }
        self.position = next;
        Ok(Some(page))
    }
}

fn position_after(reply: &Reply) -> Position {
    let token = reply.headers.get(NEXT_TOKEN).and_then(|value| value.to_str().ok()).filter(|token| !token.is_empty());
    token.map_or(Position::End, |token| Position::After(token.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_encoded_as_the_sdks_do() {
        let which =
            ListSandboxes { metadata: BTreeMap::from([("a".into(), "b c".into())]), ..ListSandboxes::default() };
        assert_eq!(which.path(None), "/v2/sandboxes?metadata=a%3Db%252520c");
        let which = ListSandboxes { state: Some(SandboxState::Paused), page_size: Some(7), ..Default::default() };
        assert_eq!(which.path(Some("t=")), "/v2/sandboxes?state=paused&limit=7&nextToken=t%3D");
    }
}
