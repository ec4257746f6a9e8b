//! Finding templates. A team sees its own, those that others have made public, and those that come with the server; in
//! this order where names are the same, except that nobody can put a public template in the place of one of the server's.

use std::sync::Arc;

use isopod_store::secrets::new_template_id;
use isopod_store::{Build, BuildStatus, Resource, Store, StoreError, TeamId, Template};
use isopod_wire::Limits;
use isopod_wire::node::NodeApi;
use tokio_util::sync::CancellationToken;

use super::builds::Builds;
use super::limits::BuildLimits;
use super::name::{NameError, Reference, is_build_id};
use super::uploads::Uploads;

/// Everything about templates that requests can reach.
pub struct Catalogue {
    pub(crate) store: Store,
    pub(crate) uploads: Uploads,
    pub(crate) builds: Arc<Builds>,
    pub(crate) node: Arc<dyn NodeApi>,
    /// For templates that say nothing else.
    pub(crate) default_limits: Limits,
}

/// What a sandbox can be made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Usable {
    /// What the API calls it.
    pub(crate) id: String,
    /// What people call it, where that is something else.
    pub(crate) alias: Option<String>,
    /// What the node calls it.
    pub(crate) node_template: NodeTemplate,
    pub limits: Limits,
}

/// What the node calls a template. The node keeps those of all teams and gives any of them to whoever names it, so only
/// the catalogue makes one of these: of a build that the team may use, or of a name that comes with the server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeTemplate(String);

impl NodeTemplate {
    /// As the node's calls take it.
    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// The same, to keep.
    pub(crate) fn into_name(self) -> String {
        self.0
    }
}

/// Why a template is not found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("template '{0}' not found")]
    NotFound(String),
    /// It has the id that was asked for, but is another team's.
    #[error("template '{0}' belongs to another team and is not public")]
    Forbidden(String),
    #[error("template '{name}' has no tag '{tag}'; {known}")]
    NoTag { name: String, tag: String, known: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Catalogue {
    pub(crate) fn new(
        store: Store,
        node: Arc<dyn NodeApi>,
        build_limits: BuildLimits,
        default_limits: Limits,
        stop: CancellationToken,
    ) -> Self {
        let builds = Builds::new(store.clone(), Arc::clone(&node), build_limits, stop);
        Self {
            uploads: Uploads::new(store.directory().join("uploads"), build_limits),
            builds: Arc::new(builds),
            store,
            node,
            default_limits,
        }
    }

    /// The template of that name or id, also one that comes with the server; ready to make a sandbox of.
    pub async fn usable(&self, team: &TeamId, asked: &str) -> Result<Usable, FindError> {
        let reference = Reference::parse(asked)?;
        let Some(template) = self.look_up(team, asked, &reference).await? else {
            return self.of_the_server(&reference).await.ok_or_else(|| FindError::NotFound(asked.to_owned()));
        };
        match self.tagged(&template, &reference).await {
            Ok(build) => Ok(self.usable_build(template, build)),
            // One that was asked for and never built does not hide one of the same name that is always there.
            Err(error) => self.of_the_server(&reference).await.ok_or(error),
        }
    }

    /// One that comes with the server: named without a team, and with no tag but the usual one. The ids that the node
    /// gives to built templates are no names of such.
    async fn of_the_server(&self, reference: &Reference) -> Option<Usable> {
        let is_plain = reference.namespace.is_none() && reference.tag() == super::DEFAULT_TAG;
        if !is_plain || !self.comes_with_server(&reference.name).await {
            return None;
        }
        Some(Usable {
            id: reference.name.clone(),
            alias: None,
            node_template: NodeTemplate(reference.name.clone()),
            limits: self.default_limits,
        })
    }

    /// A template that has rows. One that comes with the server has none.
    pub(crate) async fn find(&self, team: &TeamId, asked: &str) -> Result<(Template, Reference), FindError> {
        let reference = Reference::parse(asked)?;
        let found = self.look_up(team, asked, &reference).await?;
        Ok((found.ok_or_else(|| FindError::NotFound(asked.to_owned()))?, reference))
    }

    /// A template of the team's own, to change it.
    pub(crate) async fn find_own(&self, team: &TeamId, asked: &str) -> Result<(Template, Reference), FindError> {
        let (template, reference) = self.find(team, asked).await?;
        if template.team != *team {
            return Err(FindError::Forbidden(asked.to_owned()));
        }
        Ok((template, reference))
    }

    /// The build that the reference's tag names.
    pub(crate) async fn tagged(&self, template: &Template, reference: &Reference) -> Result<Build, FindError> {
        let named = match is_build_id(reference.tag()) {
            true => self.store.build(&template.id, reference.tag()).await?,
            false => self.store.tagged_build(&template.id, reference.tag()).await?,
        };
        if let Some(build) = named.filter(|build| build.status == BuildStatus::Ready) {
            // What it made is on the node that made it.
            self.store.check_here(Resource::Build(&build.id)).await?;
            return Ok(build);
        }
        let tags: Vec<String> = self.store.list_tags(&template.id).await?.into_iter().map(|tag| tag.tag).collect();
        let known = match tags.as_slice() {
            [] => "no build of it is ready".to_owned(),
            tags => format!("it has {}", tags.join(", ")),
        };
        Err(FindError::NoTag { name: reference.name.clone(), tag: reference.tag().to_owned(), known })
    }

    /// The team's template of that name, a new one if there is none.
    pub(crate) async fn ensure(&self, team: &TeamId, name: &str) -> Result<Template, StoreError> {
        self.store.ensure_template(team, name, &new_template_id()).await
    }

    fn usable_build(&self, template: Template, build: Build) -> Usable {
        Usable {
            alias: template.names.first().cloned(),
            id: template.id,
            node_template: NodeTemplate(build.node_template.unwrap_or_default()),
            limits: build.limits,
        }
    }

    async fn look_up(&self, team: &TeamId, asked: &str, reference: &Reference) -> Result<Option<Template>, FindError> {
        if let Some(space) = &reference.namespace {
            let found = self.store.template_of_namespace(space, &reference.name).await?;
            return Ok(found.filter(|template| template.public || template.team == *team));
        }
        let found = self.store.visible_template(team, &reference.name).await?;
        if let Some(template) = found
            && (template.team == *team || !self.comes_with_server(&reference.name).await)
        {
            return Ok(Some(template));
        }
        if !is_template_id(&reference.name) {
            return Ok(None);
        }
        match self.store.template(&reference.name).await? {
            Some(template) if template.team != *team && !template.public => Err(FindError::Forbidden(asked.to_owned())),
            found => Ok(found),
        }
    }

    async fn comes_with_server(&self, name: &str) -> bool {
        self.node.templates().await.iter().any(|template| template.is_called(name))
    }
}

/// As those look that we make.
fn is_template_id(text: &str) -> bool {
    text.len() == 20 && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

impl std::fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catalogue").field("uploads", &self.uploads).finish_non_exhaustive()
    }
}
