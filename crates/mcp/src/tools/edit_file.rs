//! `edit_file`: replaces a part of a text file.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answered, Call, Effect, McpTool, Where};
use crate::read_up_to::read_up_to;
use crate::tool_error::ToolError;

const MAX_FILE: usize = 16 << 20;

/// Arguments of `edit_file`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct EditFileArgs {
    /// Path in the sandbox. A relative path starts at the user's home.
    path: String,
    /// The text to replace, exactly as it is in the file. It must occur once, unless `replace_all` is set.
    #[schemars(length(min = 1))]
    old_text: String,
    /// The text to put in its place.
    new_text: String,
    /// Replace all occurrences.
    #[serde(default)]
    replace_all: bool,
    #[serde(flatten)]
    place: Where,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct EditAnswer {
    /// The sandbox that has it.
    sandbox: String,
    /// The whole path.
    path: String,
    /// How many occurrences were replaced.
    replaced: usize,
}

impl McpTool for EditFileArgs {
    const NAME: &'static str = "edit_file";
    const TITLE: &'static str = "Edit a file";
    const DESCRIPTION: &'static str = "Replaces text in a file in a sandbox.";
    const EFFECT: Effect = Effect::Destroys;
    type Answer = EditAnswer;

    async fn run(self, call: Call) -> Result<Answered<EditAnswer>, ToolError> {
        let sandbox = call.sandbox(self.place).await?;
        let guest = sandbox.guest();
        let read = match guest.read_file(&self.path).await {
            Ok(download) => read_up_to(download, MAX_FILE).await,
            Err(error) => Err(error),
        };
        let bytes = match read {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                return Err(ToolError::new(format!("{} is too large", self.path)).hint("use run_command with sed"));
            }
            Err(error) => return Err(call.sandboxes.explain(error, sandbox.id()).await),
        };
        let text = String::from_utf8(bytes).map_err(|_| ToolError::new(format!("{} is no text", self.path)))?;
        let (changed, replaced) = replace(&text, &self.old_text, &self.new_text, self.replace_all)?;
        match guest.write_file(&self.path, changed).await {
            Ok(written) => {
                let answer = EditAnswer { sandbox: sandbox.id().to_string(), path: written.path, replaced };
                Ok(Answered::text(
                    format!("Replaced {replaced} occurrence{}.", if replaced == 1 { "" } else { "s" }),
                    answer,
                ))
            }
            Err(error) => Err(call.sandboxes.explain(error, sandbox.id()).await),
        }
    }
}

fn replace(text: &str, old: &str, new: &str, all: bool) -> Result<(String, usize), ToolError> {
    if old.is_empty() {
        return Err(ToolError::new("`old_text` is empty").hint("write_file writes a whole file"));
    }
    match text.matches(old).count() {
        0 => Err(ToolError::new("`old_text` is not in the file")
            .hint("read_file shows the file; spaces, tabs and line ends must be the same")),
        count if count > 1 && !all => Err(ToolError::new(format!("`old_text` is in the file {count} times"))
            .hint("give more of the text around it, or set replace_all")),
        count => Ok((text.replace(old, new), count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_is_clear_or_refused() {
        assert_eq!(replace("a b", "b", "c", false).unwrap(), ("a c".to_owned(), 1));
        assert_eq!(replace("b b", "b", "c", true).unwrap(), ("c c".to_owned(), 2));
        for (text, old) in [("a", "b"), ("b b", "b"), ("a", "")] {
            assert!(replace(text, old, "c", false).is_err());
        }
    }
}
