//! The tools whose work is all on the server's side, each by its own name.

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
    /// Runs Python code; variables stay for the next call.
    run_python_code(code: &str);
    /// Runs a shell command and waits for its end, for a minute unless more is said.
    run_command(command: &str, timeout_seconds: f64);
    /// Says whether there is a sandbox, how long it has run, and how the workspace is.
    get_sandbox_status();
    /// Replaces the sandbox by a fresh one.
    restart_sandbox();
    /// Lists a directory as `ls -la` does.
    list_files(directory: &str);
    /// Reads a file; bytes that are no text are in `content_base64`.
    read_file_content(path: &str);
    /// Writes a text file.
    write_file_content(path: &str, content: &str);
    /// Makes a directory and those above it.
    create_directory(path: &str);
    /// Installs a Python package with pip.
    install_package(package: &str);
    /// Says under which host name a port is reached.
    get_sandbox_url(port: u16);
}
