//! Describes the input and output of an operation by its handler's signature: the types describe themselves. A handler
//! with a type that does not describe itself cannot be registered, so the document covers every operation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use axum::body::Body;
use axum::extract::multipart::MultipartRejection;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{Multipart, Path, Request, State};
use axum::response::Html;
use axum::{Extension, Json};
use http::HeaderMap;
use http::request::Parts;
use utoipa::ToSchema;
use utoipa::openapi::path::{Operation, OperationBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::schema::{ArrayBuilder, KnownFormat, ObjectBuilder, Schema, SchemaFormat, SchemaType, Type};
use utoipa::openapi::security::SecurityRequirement;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Required};

use crate::params::Param;

pub(crate) const JSON: &str = "application/json";

/// The description of an operation, while it is being built.
#[derive(Default)]
pub struct Description {
    pub(crate) operation: Operation,
    /// The schemas it refers to, by name.
    pub(crate) schemas: BTreeMap<String, RefOr<Schema>>,
    /// The statuses of errors, which all have the same form.
    pub(crate) refusals: BTreeSet<u16>,
}

/// A part of a request that handlers accept. Most describe nothing, because they come from the server rather than the
/// client.
pub trait DescribeInput {
    fn describe(_operation: &mut Description) {}
}

/// A response of a handler.
pub trait DescribeAnswer {
    fn describe(operation: &mut Description);
}

/// A handler whose arguments and response describe themselves. `T` is the same as in [`axum::handler::Handler`].
pub trait DescribedHandler<T> {
    fn describe(operation: &mut Description);
}

impl fmt::Debug for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Description").field("refusals", &self.refusals).finish_non_exhaustive()
    }
}

impl Description {
    pub fn parameter(&mut self, place: ParameterIn, parameter: &Param) {
        self.operation.parameters.get_or_insert_default().push(parameter.described(place));
    }

    pub fn header(&mut self, parameter: &Param) {
        self.parameter(ParameterIn::Header, parameter);
        self.may_refuse(&[400]);
    }

    pub fn may_refuse(&mut self, statuses: &[u16]) {
        self.refusals.extend(statuses);
    }

    /// Sets the security scheme that replaces the key.
    pub fn opened_by(&mut self, scheme: &str) {
        self.operation.security = Some(vec![SecurityRequirement::new(scheme, [""; 0])]);
        self.may_refuse(&[401]);
    }

    /// Adds a JSON body. It is optional if none of its fields is required.
    pub fn json_body<T: ToSchema>(&mut self) {
        let is_required = has_required_fields(&T::schema());
        let schema = self.schema_of::<T>();
        self.body([JSON], schema, is_required);
        self.may_refuse(&[400, 408, 413, 415]);
    }

    /// Adds a body of raw bytes.
    pub fn raw_body(&mut self, kind: &str) {
        self.body([kind], bytes(), true);
        self.may_refuse(&[400, 408, 413]);
    }

    pub fn body<const N: usize>(&mut self, kinds: [&str; N], schema: RefOr<Schema>, is_required: bool) {
        let required = if is_required { Required::True } else { Required::False };
        let body = RequestBodyBuilder::new().required(Some(required));
        let body = kinds.into_iter().fold(body, |body, kind| body.content(kind, content(schema.clone())));
        self.operation.request_body = Some(body.build());
    }

    pub(crate) fn needs_body(&mut self) {
        if let Some(body) = &mut self.operation.request_body {
            body.required = Some(Required::True);
        }
    }

    pub fn json_answer<T: ToSchema>(&mut self, status: u16) {
        let schema = self.schema_of::<T>();
        self.answer(status, JSON, schema);
    }

    /// Adds a response with a JSON array.
    pub fn json_list<T: ToSchema>(&mut self, status: u16) {
        let items = self.schema_of::<T>();
        self.answer(status, JSON, ArrayBuilder::new().items(items).into());
    }

    pub fn text_answer(&mut self, status: u16, kind: &str) {
        self.answer(status, kind, ObjectBuilder::new().schema_type(Type::String).into());
    }

    pub fn raw_answer(&mut self, status: u16, kind: &str) {
        self.answer(status, kind, bytes());
    }

    pub fn empty_answer(&mut self, status: u16) {
        let answer = ResponseBuilder::new().description(reason(status)).build();
        self.operation.responses.responses.insert(status.to_string(), answer.into());
    }

    fn answer(&mut self, status: u16, kind: &str, schema: RefOr<Schema>) {
        let answer = ResponseBuilder::new().description(reason(status)).content(kind, content(schema)).build();
        self.operation.responses.responses.insert(status.to_string(), answer.into());
    }

    /// Returns a reference if the schema has a name, otherwise the schema itself.
    pub fn schema_of<T: ToSchema>(&mut self) -> RefOr<Schema> {
        let mut inner = Vec::new();
        T::schemas(&mut inner);
        for (name, schema) in inner {
            self.name_schema(name, schema);
        }
        match T::schema() {
            RefOr::T(Schema::Object(object)) if is_anything(&object.schema_type) => {
                ObjectBuilder::new().schema_type(Type::Object).into()
            }
            RefOr::T(Schema::Object(object)) if object.properties.is_empty() => object.into(),
            schema @ RefOr::T(Schema::Object(_) | Schema::OneOf(_) | Schema::AllOf(_) | Schema::AnyOf(_)) => {
                let name = T::name().into_owned();
                self.name_schema(name.clone(), schema);
                Ref::from_schema_name(name).into()
            }
            schema => schema,
        }
    }

    fn name_schema(&mut self, name: String, schema: RefOr<Schema>) {
        if let Some(known) = self.schemas.get(&name) {
            assert!(*known == schema, "two schemas are called {name}; rename one with #[schema(as = …)]");
        }
        self.schemas.insert(name, schema);
    }
}

fn is_anything(kind: &SchemaType) -> bool {
    matches!(kind, SchemaType::AnyValue)
}

fn has_required_fields(schema: &RefOr<Schema>) -> bool {
    matches!(schema, RefOr::T(Schema::Object(object)) if !object.required.is_empty())
}

fn content(schema: RefOr<Schema>) -> utoipa::openapi::Content {
    ContentBuilder::new().schema(Some(schema)).build()
}

fn bytes() -> RefOr<Schema> {
    let format = SchemaFormat::KnownFormat(KnownFormat::Binary);
    ObjectBuilder::new().schema_type(Type::String).format(Some(format)).into()
}

fn reason(status: u16) -> &'static str {
    http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("Response")
}

/// Creates a description with only a summary.
pub(crate) fn new_description(summary: &str) -> Description {
    let operation = OperationBuilder::new().summary(Some(summary)).build();
    Description { operation, ..Description::default() }
}

impl<S> DescribeInput for State<S> {}
/// The names of path parameters are in the route; [`crate::document`] reads them there.
impl<T> DescribeInput for Path<T> {}
impl DescribeInput for HeaderMap {}
impl DescribeInput for Parts {}

impl DescribeInput for Body {
    fn describe(operation: &mut Description) {
        operation.raw_body("application/octet-stream");
    }
}

impl DescribeInput for Request {
    fn describe(operation: &mut Description) {
        Body::describe(operation);
    }
}

impl DescribeInput for Result<Multipart, MultipartRejection> {
    fn describe(operation: &mut Description) {
        let file = ObjectBuilder::new().property("file", bytes()).required("file").build();
        operation.body(["multipart/form-data"], file.into(), true);
        operation.may_refuse(&[400, 408, 413]);
    }
}

impl<E> DescribeInput for Result<WebSocketUpgrade, E> {
    fn describe(operation: &mut Description) {
        operation.may_refuse(&[400]);
    }
}

impl<A: DescribeAnswer, E> DescribeAnswer for Result<A, E> {
    fn describe(operation: &mut Description) {
        A::describe(operation);
    }
}

impl<T: ToSchema> DescribeAnswer for Json<T> {
    fn describe(operation: &mut Description) {
        operation.json_answer::<T>(200);
    }
}

impl DescribeAnswer for Html<String> {
    fn describe(operation: &mut Description) {
        operation.text_answer(200, "text/html");
    }
}

/// The extension is for the audit log, not for the client.
impl<T, A: DescribeAnswer> DescribeAnswer for (Extension<T>, A) {
    fn describe(operation: &mut Description) {
        A::describe(operation);
    }
}

impl<A: DescribeAnswer> DescribeAnswer for (HeaderMap, A) {
    fn describe(operation: &mut Description) {
        A::describe(operation);
    }
}

macro_rules! handlers_of {
    ($($input:ident),*) => {
        impl<F, Answering, Answer, M, $($input,)*> DescribedHandler<(M, $($input,)*)> for F
        where
            F: FnOnce($($input),*) -> Answering,
            Answering: Future<Output = Answer>,
            Answer: DescribeAnswer,
            $($input: DescribeInput,)*
        {
            fn describe(operation: &mut Description) {
                $($input::describe(operation);)*
                Answer::describe(operation);
            }
        }
    };
}

handlers_of!();
handlers_of!(A);
handlers_of!(A, B);
handlers_of!(A, B, C);
handlers_of!(A, B, C, D);
handlers_of!(A, B, C, D, E);
handlers_of!(A, B, C, D, E, G);
