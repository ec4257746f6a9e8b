//! What tells the server of a cluster that has what a request is about.

/// What the parameter names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// A sandbox of E2B's API.
    Sandbox,
    /// A sandbox of the service.
    ServiceSandbox,
    /// A build of a template.
    Build,
    /// Something of this kind with a name that each team chooses.
    Named(&'static str),
    /// A new sandbox, which may be on any server.
    NewSandbox,
}

/// A location, and the parameter that names it, without braces. New sandboxes have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    pub by: Location,
    pub parameter: &'static str,
}
