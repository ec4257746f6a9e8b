//! Which path parameter of a route tells the server that has what the request is about. A cluster forwards such a request
//! before anything of it is read. Requests to other routes go to the server that got them, whose handler may say that
//! another one has it.

use std::collections::HashMap;

use http::Method;

use crate::location::Location;
use crate::rule::DeclaredRoute;

/// Finds the location of a request by its path.
#[derive(Clone, Debug, Default)]
pub struct LocatedRoutes {
    /// By the number of segments.
    patterns: HashMap<usize, Vec<Pattern>>,
}

#[derive(Clone, Debug)]
struct Pattern {
    method: &'static str,
    segments: Vec<Segment>,
    located: Option<Location>,
    /// The position of its parameter.
    position: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Segment {
    /// Fixed text wins over a parameter, as in the router.
    Text(&'static str),
    Parameter,
    /// A parameter that matches several segments.
    Rest,
}

/// The longest name that is looked up.
const MAX_NAME: usize = 200;

impl LocatedRoutes {
    pub fn of(routes: impl IntoIterator<Item = DeclaredRoute>) -> Self {
        let mut patterns: HashMap<usize, Vec<Pattern>> = HashMap::new();
        for route in routes {
            let segments: Vec<Segment> = route.path.split('/').map(segment).collect();
            let position = route.located.and_then(|located| position_of(route.path, located.parameter));
            let located = route.located.map(|located| located.by);
            let pattern = Pattern { method: route.method, segments, located, position };
            patterns.entry(pattern.segments.len()).or_default().push(pattern);
        }
        // The first match is the most specific one.
        patterns.values_mut().for_each(|patterns| patterns.sort_by(|one, other| one.segments.cmp(&other.segments)));
        Self { patterns }
    }

    /// What a request is about, and the name in its path, as it is there.
    pub fn find<'p>(&self, method: &Method, path: &'p str) -> Option<(Location, &'p str)> {
        let segments: Vec<&str> = path.split('/').collect();
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let patterns = (1..=segments.len()).rev().filter_map(|length| self.patterns.get(&length)).flatten();
        let found = patterns.into_iter().find(|pattern| pattern.matches(method, &segments))?;
        let name = found.position.map_or(Some(""), |position| segments.get(position).copied())?;
        (name.len() <= MAX_NAME).then_some((found.located?, name))
    }
}

impl Pattern {
    fn matches(&self, method: &Method, path: &[&str]) -> bool {
        let fits = path.len() == self.segments.len() || path.len() > self.segments.len() && self.is_open();
        let is_method = self.method == "ANY" || self.method == method.as_str();
        fits && is_method
            && self.segments.iter().zip(path).all(|(segment, given)| match segment {
                Segment::Text(text) => text == given,
                Segment::Parameter | Segment::Rest => !given.is_empty(),
            })
    }

    /// Whether its last parameter matches several segments.
    fn is_open(&self) -> bool {
        self.segments.last() == Some(&Segment::Rest)
    }
}

fn segment(text: &'static str) -> Segment {
    match text {
        _ if text.starts_with("{*") => Segment::Rest,
        _ if text.starts_with('{') => Segment::Parameter,
        _ => Segment::Text(text),
    }
}

fn position_of(path: &str, parameter: &str) -> Option<usize> {
    path.split('/')
        .position(|segment| segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) == Some(parameter))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::location::Located;
    use crate::rule::{Needs, reads};

    fn route(method: &'static str, path: &'static str, located: Option<(Location, &'static str)>) -> DeclaredRoute {
        let located = located.map(|(by, parameter)| Located { by, parameter });
        DeclaredRoute { method, path, rule: reads(Needs::TeamKey), documented: None, located }
    }

    #[test]
    fn a_path_tells_what_it_is_about() {
        let sandbox = Some((Location::Sandbox, "id"));
        let routes = LocatedRoutes::of([
            route("GET", "/sandboxes/metrics", None),
            route("GET", "/sandboxes/{id}", sandbox),
            route("POST", "/sandboxes/{id}/pause", sandbox),
            route("POST", "/sandboxes", Some((Location::NewSandbox, ""))),
            route("GET", "/templates/{id}/builds/{build}/status", Some((Location::Build, "build"))),
            route("PUT", "/files/{id}/files/{*key}", Some((Location::Named("files"), "id"))),
            route("ANY", "/runs/{run}/x", Some((Location::Named("run"), "run"))),
        ]);
        let find = |method: Method, path| routes.find(&method, path);
        assert_eq!(find(Method::GET, "/sandboxes/iabc"), Some((Location::Sandbox, "iabc")));
        assert_eq!(find(Method::HEAD, "/sandboxes/iabc"), Some((Location::Sandbox, "iabc")));
        assert_eq!(find(Method::POST, "/sandboxes/iabc/pause"), Some((Location::Sandbox, "iabc")));
        assert_eq!(find(Method::POST, "/sandboxes"), Some((Location::NewSandbox, "")));
        assert_eq!(find(Method::GET, "/templates/t/builds/b/status"), Some((Location::Build, "b")));
        assert_eq!(find(Method::PUT, "/runs/r/x"), Some((Location::Named("run"), "r")));
        assert_eq!(find(Method::PUT, "/files/f/files/a/b/c"), Some((Location::Named("files"), "f")));
        for (method, path) in [
            (Method::GET, "/sandboxes/metrics"),
            (Method::GET, "/sandboxes"),
            (Method::GET, "/sandboxes/"),
            (Method::POST, "/sandboxes/iabc"),
            (Method::GET, "/sandboxes/iabc/other/more"),
            (Method::GET, ""),
        ] {
            assert_eq!(find(method.clone(), path), None, "{method} {path}");
        }
        let long = format!("/sandboxes/{}", "a".repeat(201));
        assert_eq!(find(Method::GET, &long), None);
    }
}
