//! Finds templates. A team sees its own, public ones of other teams, and built-in ones. If names are equal, they have
//! priority in this order, except that a public template never replaces a built-in one.

use std::sync::Arc;

use isopod_store::secrets::new_template_id;
use isopod_store::{Build, BuildStatus, Resource, SandboxRow, Store, StoreError, TeamId, Template, TemplateKind};
use isopod_wire::node::NodeApi;
use isopod_wire::{FeatureGrants, Limits, SnapshotId};
use tokio_util::sync::CancellationToken;

use super::builds::Builds;
use super::limits::BuildLimits;
use super::uploads::Uploads;
use super::waiting_contexts::WaitingContexts;
use isopod_store::template_name::{NameError, Reference, is_build_id};

/// The state that handlers of template routes share.
pub struct Catalogue {
    pub(crate) store: Store,
    pub(crate) uploads: Uploads,
    pub(crate) waiting: WaitingContexts,
    pub(crate) builds: Arc<Builds>,
    pub(crate) node: Arc<dyn NodeApi>,
    /// For templates without limits of their own.
    pub(crate) default_limits: Limits,
    /// What the operator gives sandboxes of some templates.
    features: FeatureGrants,
}

/// A template that a sandbox can be created from.
#[derive(Clone, Debug, PartialEq)]
pub struct UsableTemplate {
    /// Its id in the API.
    pub(crate) id: String,
    /// Its name, if that differs from the id.
    pub(crate) alias: Option<String>,
    /// Its name on the node.
    pub(crate) node_template: NodeTemplate,
    pub limits: Limits,
    /// The kernel features that the operator gives its sandboxes, if they do not ask for any themselves.
    pub(crate) features: Option<String>,
    /// What sandboxes start from instead of the template's files.
    pub(crate) snapshot: Option<SnapshotStart>,
}

/// A snapshot that a sandbox starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotStart {
    /// Its id on the node.
    pub(crate) id: SnapshotId,
    /// Whether its processes go on, with the limits that they had. If not, only its files are used.
    pub(crate) has_memory: bool,
    /// The kernel features of its source.
    pub(crate) features: Option<String>,
}

impl UsableTemplate {
    /// The template of a copy of this sandbox, which starts from a snapshot of it. A team may use what its own sandbox
    /// stands on.
    pub(crate) fn of_copy(source: &SandboxRow, node_template: String, snapshot: SnapshotId, has_memory: bool) -> Self {
        Self {
            id: source.template.clone(),
            alias: source.alias.clone(),
            node_template: NodeTemplate(node_template),
            limits: source.limits,
            // The copy asks for the features itself: it has the source's metadata.
            features: None,
            snapshot: Some(SnapshotStart { id: snapshot, has_memory, features: None }),
        }
    }

    /// Sandboxes start from the files of a snapshot alone, even if it has memory.
    pub(crate) fn leave_memory(&mut self) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.has_memory = false;
        }
    }

    /// Whether its sandboxes cannot have other limits than these, because they go on with memory that was kept.
    pub fn has_fixed_limits(&self) -> bool {
        self.snapshot.as_ref().is_some_and(|snapshot| snapshot.has_memory)
    }
}

/// The name of a template on the node. The node holds the templates of all teams and checks no permissions. Therefore
/// only the catalogue creates these names: for a build that the team may use, or for a built-in template.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeTemplate(String);

impl NodeTemplate {
    /// The name in calls to the node.
    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// Returns the name for calls to the node.
    pub(crate) fn into_name(self) -> String {
        self.0
    }
}

/// Why a template was not found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("template '{0}' not found")]
    NotFound(String),
    /// The requested id exists, but belongs to another team.
    #[error("template '{0}' belongs to another team and is not public")]
    Forbidden(String),
    #[error("'{0}' is a snapshot of a sandbox, which cannot be built, exported or made public")]
    IsSnapshot(String),
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
        features: FeatureGrants,
        stop: CancellationToken,
    ) -> Self {
        let builds = Builds::new(store.clone(), Arc::clone(&node), build_limits, stop);
        Self {
            uploads: Uploads::new(store.directory().join("uploads"), build_limits),
            waiting: WaitingContexts::default(),
            builds: Arc::new(builds),
            store,
            node,
            default_limits,
            features,
        }
    }

    /// Returns the template with that name or id, including built-in ones, if a sandbox can be created from it.
    pub async fn usable(&self, team: &TeamId, asked: &str) -> Result<UsableTemplate, FindError> {
        let reference = Reference::parse(asked)?;
        let Some(template) = self.look_up(team, asked, &reference).await? else {
            return self.built_in(team, &reference).await.ok_or_else(|| FindError::NotFound(asked.to_owned()));
        };
        match self.tagged(&template, &reference).await {
            Ok(build) => Ok(self.usable_build(team, template, build)),
            // A requested but never built template does not hide a built-in one with the same name.
            Err(error) => self.built_in(team, &reference).await.ok_or(error),
        }
    }

    /// Returns a built-in template: it has no namespace, and no tag but the default one. The node's ids of built
    /// templates are not names of built-in ones.
    async fn built_in(&self, team: &TeamId, reference: &Reference) -> Option<UsableTemplate> {
        let is_plain = reference.namespace.is_none() && reference.tag() == super::DEFAULT_TAG;
        if !is_plain || !self.is_built_in(&reference.name).await {
            return None;
        }
        Some(UsableTemplate {
            id: reference.name.clone(),
            alias: None,
            node_template: NodeTemplate(reference.name.clone()),
            limits: self.default_limits,
            features: self.features.of_template(&team.0, [reference.name.as_str()]),
            snapshot: None,
        })
    }

    /// Returns a template that has rows. Built-in ones have none.
    pub(crate) async fn find(&self, team: &TeamId, asked: &str) -> Result<(Template, Reference), FindError> {
        let reference = Reference::parse(asked)?;
        let found = self.look_up(team, asked, &reference).await?;
        Ok((found.ok_or_else(|| FindError::NotFound(asked.to_owned()))?, reference))
    }

    /// Returns a template of the team's own, in order to change it.
    pub(crate) async fn find_own(&self, team: &TeamId, asked: &str) -> Result<(Template, Reference), FindError> {
        let (template, reference) = self.find(team, asked).await?;
        if template.team != *team {
            return Err(FindError::Forbidden(asked.to_owned()));
        }
        Ok((template, reference))
    }

    /// Returns a built template of the team's own. A snapshot is refused, because only its source can add to it.
    pub(crate) async fn find_built(&self, team: &TeamId, asked: &str) -> Result<(Template, Reference), FindError> {
        let (template, reference) = self.find_own(team, asked).await?;
        match template.kind {
            TemplateKind::Built => Ok((template, reference)),
            TemplateKind::Snapshot => Err(FindError::IsSnapshot(asked.to_owned())),
        }
    }

    /// Returns a snapshot of the team's own.
    pub(crate) async fn find_snapshot(&self, team: &TeamId, asked: &str) -> Result<Build, FindError> {
        let (template, reference) = self.find_own(team, asked).await?;
        match template.kind {
            TemplateKind::Snapshot => self.tagged(&template, &reference).await,
            TemplateKind::Built => Err(FindError::NotFound(asked.to_owned())),
        }
    }

    /// Returns the build that the reference's tag names.
    pub(crate) async fn tagged(&self, template: &Template, reference: &Reference) -> Result<Build, FindError> {
        let named = match is_build_id(reference.tag()) {
            true => self.store.build(&template.id, reference.tag()).await?,
            false => self.store.tagged_build(&template.id, reference.tag()).await?,
        };
        if let Some(build) = named.filter(|build| build.status == BuildStatus::Ready) {
            // The result of a build is on the node that built it.
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

    /// Returns the team's template with that name. Creates it if necessary.
    pub(crate) async fn ensure(&self, team: &TeamId, name: &str) -> Result<Template, StoreError> {
        self.store.ensure_template(team, name, &new_template_id()).await
    }

    fn usable_build(&self, team: &TeamId, template: Template, build: Build) -> UsableTemplate {
        UsableTemplate {
            features: self.features_of(team, &template),
            alias: template.names.first().cloned(),
            id: template.id,
            node_template: NodeTemplate(build.node_template.unwrap_or_default()),
            limits: build.limits,
            snapshot: build.snapshot.map(|source| SnapshotStart {
                id: source.id,
                has_memory: source.has_memory,
                features: source.features,
            }),
        }
    }

    /// The operator means templates of the team's own: another team chooses the names of those that it publishes. A sandbox
    /// from a snapshot has what the snapshot's source had.
    fn features_of(&self, team: &TeamId, template: &Template) -> Option<String> {
        let is_own = template.team == *team && template.kind == TemplateKind::Built;
        let names = template.names.iter().chain([&template.id]).map(String::as_str);
        is_own.then(|| self.features.of_template(&team.0, names)).flatten()
    }

    async fn look_up(&self, team: &TeamId, asked: &str, reference: &Reference) -> Result<Option<Template>, FindError> {
        if let Some(space) = &reference.namespace {
            let found = self.store.template_of_namespace(space, &reference.name).await?;
            return Ok(found.filter(|template| template.public || template.team == *team));
        }
        let found = self.store.visible_template(team, &reference.name).await?;
        if let Some(template) = found
            && (template.team == *team || !self.is_built_in(&reference.name).await)
        {
            return Ok(Some(template));
        }
        if !is_template_id(&reference.name) {
            return Ok(None);
        }
        match self.store.template(&reference.name).await? {
            // Snapshots of other teams do not exist for the caller.
            Some(template) if template.team != *team && template.kind == TemplateKind::Snapshot => Ok(None),
            Some(template) if template.team != *team && !template.public => Err(FindError::Forbidden(asked.to_owned())),
            found => Ok(found),
        }
    }

    async fn is_built_in(&self, name: &str) -> bool {
        self.node.templates().await.iter().any(|template| template.is_called(name))
    }
}

/// Whether this looks like an id that the server generates.
fn is_template_id(text: &str) -> bool {
    text.len() == 20 && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

impl std::fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catalogue").field("uploads", &self.uploads).finish_non_exhaustive()
    }
}
