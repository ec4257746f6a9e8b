//! The tools that run entirely on the server, each by its own name.

use serde_json::{Value, json};

use super::{Toolkit, ToolkitError};

macro_rules! tools {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $kind:ty),*);)*) => {
        impl Toolkit {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// See [`Toolkit::call`].
                pub async fn $name(&self, $($argument: $kind),*) -> Result<Value, ToolkitError> {
                    self.call(stringify!($name), json!({ $(stringify!($argument): $argument),* })).await
                }
            )*
        }
    };
}

tools! {
    /// Runs Python code. Variables are kept for the next call.
    run_python_code(code: &str);
    /// Runs a shell command and waits for its end. The default time limit is a minute.
    run_command(command: &str, timeout_seconds: f64);
    /// Returns whether there is a sandbox, how long it has run, and the state of the workspace.
    get_sandbox_status();
    /// Replaces the sandbox with a new one.
    restart_sandbox();
    /// Lists a directory as `ls -la` does.
    list_files(directory: &str);
    /// Reads a file. Binary content is in `content_base64`.
    read_file_content(path: &str);
    /// Writes a text file.
    write_file_content(path: &str, content: &str);
    /// Creates a directory and its parents.
    create_directory(path: &str);
    /// Installs a Python package with pip.
    install_package(package: &str);
    /// Returns the host name of a port.
    get_sandbox_url(port: u16);
}
