//! Builds the OpenAPI document from route tables. The common parts of operations are derived from the declarations of
//! their routes: security, possible errors, and path parameters.

use std::collections::BTreeMap;
use std::fmt;

use utoipa::openapi::path::{HttpMethod, ParameterIn};
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::schema::Schema;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, OpenApi, OpenApiBuilder, Paths, Ref, RefOr, Response,
};
use utoipa::{PartialSchema as _, ToSchema as _};

use crate::describe::{Description, JSON};
use crate::error::ErrorBody;
use crate::params::Param;
use crate::routes::{DescribedRoute, Routes};
use crate::rule::{Needs, Rule, documented_path};

/// The name of the security scheme for keys.
const KEY: &str = "key";
/// The name of the security scheme for volume tokens.
pub const VOLUME_TOKEN: &str = "volume";
/// The name of the error response, which is the same for all statuses.
const REFUSED: &str = "Refused";

/// A document, while it is being built.
#[derive(Default)]
pub struct Document {
    paths: Paths,
    schemas: BTreeMap<String, RefOr<Schema>>,
}

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Document").field("paths", &self.paths.paths.keys()).finish_non_exhaustive()
    }
}

impl Document {
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn with<S: Clone + Send + Sync + 'static>(mut self, routes: &Routes<S>) -> Self {
        for route in routes.described() {
            self.add(route);
        }
        self
    }

    fn add(&mut self, route: DescribedRoute) {
        let DescribedRoute { path, suffix, method, rule, mut description, path_parameters, never } = route;
        describe_path(&mut description, path, &path_parameters);
        describe_rule(&mut description, rule);
        description.refusals.retain(|status| !never.contains(status));
        for status in &description.refusals {
            let refused = RefOr::<Response>::Ref(Ref::from_response_name(REFUSED));
            // A status that the handler itself returns has its own form.
            description.operation.responses.responses.entry(status.to_string()).or_insert(refused);
        }
        for (name, schema) in description.schemas {
            let known = self.schemas.entry(name);
            let known = known.or_insert_with(|| schema.clone());
            assert!(*known == schema, "two types have the same name in the document: {}", json_of(&schema));
        }
        let path = documented_path(path, suffix);
        self.paths.add_path_operation(path, vec![openapi_method(method)], description.operation);
    }

    pub fn finish(mut self, title: &str, version: &str, about: &str) -> OpenApi {
        self.schemas.insert(ErrorBody::name().into_owned(), ErrorBody::schema());
        let refused = ContentBuilder::new().schema(Some(Ref::from_schema_name(ErrorBody::name()))).build();
        let refused = ResponseBuilder::new().description("refused").content(JSON, refused).build();
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let components = ComponentsBuilder::new()
            .schemas_from_iter(self.schemas)
            .response(REFUSED, refused)
            .security_scheme(KEY, SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-API-Key"))))
            .security_scheme(VOLUME_TOKEN, SecurityScheme::Http(bearer));
        OpenApiBuilder::new()
            .info(InfoBuilder::new().title(title).version(version).description(Some(about)).build())
            .security(Some([SecurityRequirement::new(KEY, [""; 0])]))
            .paths(self.paths)
            .components(Some(components.build()))
            .build()
    }
}

fn json_of(schema: &RefOr<Schema>) -> String {
    serde_json::to_string(schema).unwrap_or_default()
}

/// Adds the names in braces as parameters. One with a star matches the rest of the path.
fn describe_path(description: &mut Description, path: &'static str, known: &[Param]) {
    for name in path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
        let plain = match name.strip_prefix('*') {
            Some(name) => Param::some_text(name).about("a path, which may contain slashes"),
            None => Param::text(name),
        };
        let parameter = known.iter().copied().find(|known| known.name() == plain.name()).unwrap_or(plain);
        description.parameter(ParameterIn::Path, &parameter);
        description.may_refuse(&[400, 404]);
    }
}

/// Adds the required credentials and the errors that follow from them.
fn describe_rule(description: &mut Description, rule: Rule) {
    match rule.needs {
        Needs::Nothing => description.operation.security = Some(Vec::new()),
        Needs::OwnToken | Needs::Session => {
            description.operation.security.get_or_insert_default();
            description.may_refuse(&[500, 503]);
        }
        Needs::AgentKey | Needs::TeamView | Needs::TeamKey | Needs::AdminKey | Needs::MetricsKey => {
            description.may_refuse(&[401, 403, 500, 503]);
        }
    }
}

fn openapi_method(method: &str) -> HttpMethod {
    match method {
        "GET" => HttpMethod::Get,
        "HEAD" => HttpMethod::Head,
        "POST" => HttpMethod::Post,
        "PUT" => HttpMethod::Put,
        "PATCH" => HttpMethod::Patch,
        _ => HttpMethod::Delete,
    }
}
