//! The templates that come with Isopod, as recipes: a script that runs once as root in a sandbox of the base.

use std::borrow::Cow;
use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::Interpreter;
use crate::base::BaseFacts;

/// Where an operator puts files of their own in the place of a recipe's: `recipes/<name>/<file>` below the state directory.
const OWN_FILES: &str = "recipes";

/// The line of a recipe's file after which comes what the second layer has.
const MORE: &str = "[more]";

/// A layer of a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// What the template needs to be usable.
    Core,
    /// The rest, on top of the core.
    More,
}

impl Part {
    /// The argument that tells the script what to install.
    pub(crate) fn argument(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::More => "more",
        }
    }
}

/// The names of the layers that a recipe gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecipeLayers {
    pub(crate) core: String,
    /// `None` if the recipe has one layer.
    pub(crate) more: Option<String>,
}

/// How a template is made.
#[derive(Debug)]
pub(crate) struct Recipe {
    pub(crate) name: &'static str,
    /// Other names for it.
    pub(crate) aliases: &'static [&'static str],
    pub(crate) summary: &'static str,
    script: &'static str,
    /// Files that the script finds in its directory: name and text.
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// The recipe whose script this one runs first. The operator's files of that one are also this one's.
    extends: Option<&'static str>,
    /// The file with a line `[more]`, if what follows it becomes a second layer.
    divided: Option<&'static str>,
    /// The code interpreter of its sandboxes.
    pub(crate) interpreter: RecipeInterpreter,
}

/// The code interpreter of a recipe's sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecipeInterpreter {
    None,
    /// Python, warm from a zygote. Works without the recipe's layers too, with less.
    Warm,
    /// Starts on first use: the layers have what the template is for.
    OnDemand,
}

static RECIPES: &[Recipe] = &[
    Recipe {
        name: "code-interpreter-v1",
        aliases: &["code-interpreter", "python3"],
        summary: "Python with packages for data work, JavaScript, TypeScript and Bash, and a code interpreter",
        script: include_str!("../../recipes/code-interpreter-v1/build.sh"),
        files: &[("packages.txt", include_str!("../../recipes/code-interpreter-v1/packages.txt"))],
        extends: None,
        divided: Some("packages.txt"),
        interpreter: RecipeInterpreter::Warm,
    },
    Recipe {
        name: "code-interpreter-full",
        aliases: &[],
        summary: "code-interpreter-v1 with R and Java",
        script: include_str!("../../recipes/code-interpreter-full/build.sh"),
        files: &[
            ("code-interpreter-v1.sh", include_str!("../../recipes/code-interpreter-v1/build.sh")),
            ("packages.txt", include_str!("../../recipes/code-interpreter-v1/packages.txt")),
        ],
        extends: Some("code-interpreter-v1"),
        divided: None,
        interpreter: RecipeInterpreter::Warm,
    },
    Recipe {
        name: "desktop",
        aliases: &[],
        summary: "Xfce on a virtual screen with a browser, for E2B's desktop SDKs",
        script: include_str!("../../recipes/desktop/build.sh"),
        files: &[],
        extends: None,
        divided: None,
        interpreter: RecipeInterpreter::None,
    },
    Recipe {
        name: "nodejs",
        aliases: &[],
        summary: "Node.js and npm, and a code interpreter for JavaScript",
        script: include_str!("../../recipes/nodejs/build.sh"),
        files: &[],
        extends: None,
        divided: None,
        interpreter: RecipeInterpreter::OnDemand,
    },
];

pub(crate) fn recipes() -> &'static [Recipe] {
    RECIPES
}

/// Finds a recipe by its name or an alias.
pub(crate) fn find_recipe(name: &str) -> Option<&'static Recipe> {
    RECIPES.iter().find(|recipe| recipe.name == name || recipe.aliases.contains(&name))
}

/// A template with a recipe, for lists.
#[derive(Clone, Debug)]
pub struct RecipeInfo {
    pub name: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
    /// What it is for.
    pub summary: &'static str,
}

/// All templates with a recipe.
pub fn list_recipes() -> impl Iterator<Item = RecipeInfo> {
    RECIPES.iter().map(|recipe| RecipeInfo { name: recipe.name, aliases: recipe.aliases, summary: recipe.summary })
}

/// Whether there is a recipe for a template of that name or alias.
pub fn has_recipe(name: &str) -> bool {
    find_recipe(name).is_some()
}

/// Whether an operator may replace a file of a recipe. Scripts are ours.
fn is_replaceable(name: &str) -> bool {
    Path::new(name).extension().is_none_or(|extension| extension != "sh")
}

/// The operator's file. One that cannot be read is reported, and not used.
fn own_text(path: &Path) -> Option<String> {
    match fs::read_to_string(path) {
        Ok(text) => Some(text),
        Err(error) => {
            if error.kind() != std::io::ErrorKind::NotFound {
                tracing::warn!(path = %path.display(), %error, "cannot read a file of a recipe; using the one that comes with Isopod");
            }
            None
        }
    }
}

impl Recipe {
    /// How its sandboxes get their interpreter, if they have one.
    pub(crate) fn new_interpreter(&self) -> Option<Interpreter> {
        let takes_zygotes = self.interpreter == RecipeInterpreter::Warm;
        (self.interpreter != RecipeInterpreter::None).then(|| Interpreter { zygote: None, takes_zygotes })
    }

    /// Whether its sandboxes are of use without its layers.
    pub(crate) fn works_without_layers(&self) -> bool {
        self.interpreter == RecipeInterpreter::Warm
    }

    /// The script, and what it finds beside itself: the operator's own file if there is one.
    pub(crate) fn texts(&self, state: &Path) -> impl Iterator<Item = (&'static str, Cow<'static, str>)> {
        let own = state.join(OWN_FILES);
        let owners: Vec<_> = std::iter::once(self.name).chain(self.extends).collect();
        let own_text = move |name: &str| owners.iter().find_map(|owner| own_text(&own.join(owner).join(name)));
        let files = self.files.iter().map(move |(name, text)| {
            let own = is_replaceable(name).then(|| own_text(name)).flatten();
            (*name, own.map_or(Cow::Borrowed(*text), Cow::Owned))
        });
        std::iter::once(("build.sh", Cow::Borrowed(self.script))).chain(files)
    }

    /// The names of the layers that this recipe gives on such a host. Packages for one Python do not work with another,
    /// and libraries of one distribution not with another's; nothing else of the host matters.
    pub(crate) fn layers(&self, facts: &BaseFacts, state: &Path) -> RecipeLayers {
        let mut hash = Sha256::new();
        let mut has_more = false;
        for (name, text) in self.texts(state) {
            has_more |= self.divided == Some(name) && text.lines().any(|line| line.trim() == MORE);
            hash.update(name.as_bytes());
            hash.update([0]);
            hash.update(text.as_bytes());
            hash.update([0]);
        }
        hash.update(facts.system.as_bytes());
        hash.update([0]);
        hash.update(minor(facts.python.as_deref().unwrap_or("none")).as_bytes());
        hash.update([0]);
        hash.update(facts.node.as_deref().map_or("none", major).as_bytes());
        let hash = hex::encode(&hash.finalize()[..8]);
        let more = has_more.then(|| format!("{}-more-{hash}", self.name));
        RecipeLayers { core: format!("{}-{hash}", self.name), more }
    }
}

/// The properties of a host that matter to layers on its base.
pub(crate) fn facts_key(facts: &BaseFacts) -> String {
    let python = minor(facts.python.as_deref().unwrap_or("none"));
    format!("{} python {python} node {}", facts.system, facts.node.as_deref().map_or("none", major))
}

/// `3.11` of `3.11.2-1+b1`.
fn minor(version: &str) -> &str {
    let end = version.match_indices('.').nth(1).map_or(version.len(), |(index, _)| index);
    &version[..end]
}

fn major(version: &str) -> &str {
    version.split('.').next().unwrap_or(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(python: &str) -> BaseFacts {
        BaseFacts { system: "Debian 12".to_owned(), python: Some(python.to_owned()), ..BaseFacts::default() }
    }

    #[test]
    fn a_layer_is_used_again_until_python_or_the_system_change() {
        let state = tempfile::tempdir().unwrap();
        let recipe = find_recipe("python3").unwrap();
        let id = |python: &str| recipe.layers(&facts(python), state.path());
        let first = id("3.11.2-6");
        assert_eq!(id("3.11.9"), first);
        assert_ne!(id("3.12.1"), first);
        let ubuntu = BaseFacts { system: "Ubuntu".to_owned(), ..facts("3.11.2") };
        assert_ne!(recipe.layers(&ubuntu, state.path()), first);
        assert_ne!(find_recipe("nodejs").unwrap().layers(&facts("3.11.2-6"), state.path()), first);
    }

    #[test]
    fn an_operators_own_list_of_packages_gives_another_layer() {
        let state = tempfile::tempdir().unwrap();
        let recipe = find_recipe("python3").unwrap();
        let before = recipe.layers(&facts("3.11.2"), state.path());
        assert_ne!(before.more.as_ref(), Some(&before.core));
        assert!(before.more.is_some());
        let own = state.path().join("recipes/code-interpreter-v1");
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("packages.txt"), "ipython\n").unwrap();
        let own_layers = recipe.layers(&facts("3.11.2"), state.path());
        assert_ne!(own_layers.core, before.core);
        assert_eq!(own_layers.more, None, "nothing follows what the operator chose");
        let texts: Vec<_> = recipe.texts(state.path()).collect();
        assert_eq!(texts.last().map(|(name, text)| (*name, text.as_ref())), Some(("packages.txt", "ipython\n")));
        fs::write(own.join("build.sh"), "exit 1\n").unwrap();
        assert!(recipe.texts(state.path()).all(|(_, text)| text != "exit 1\n"), "the script is ours");
    }

    #[test]
    fn a_recipe_that_extends_another_takes_its_own_list_first_and_then_the_others() {
        let state = tempfile::tempdir().unwrap();
        let recipe = find_recipe("code-interpreter-full").unwrap();
        let text = |wanted: &str| {
            let mut texts = recipe.texts(state.path());
            texts.find(|(name, _)| *name == wanted).map(|(_, text)| text.into_owned())
        };
        let script = find_recipe("code-interpreter-v1").unwrap().script;
        assert_eq!(text("code-interpreter-v1.sh").as_deref(), Some(script));
        for owner in ["code-interpreter-v1", "code-interpreter-full"] {
            let own = state.path().join(OWN_FILES).join(owner);
            fs::create_dir_all(&own).unwrap();
            fs::write(own.join("packages.txt"), owner).unwrap();
            fs::write(own.join("code-interpreter-v1.sh"), "exit 1\n").unwrap();
            assert_eq!(text("packages.txt").as_deref(), Some(owner));
        }
        assert_eq!(text("code-interpreter-v1.sh").as_deref(), Some(script), "the script is ours");
    }

    #[test]
    fn only_an_interpreter_that_is_python_first_gets_a_zygote() {
        let takes_zygotes = |name: &str| find_recipe(name).unwrap().new_interpreter().map(|it| it.takes_zygotes);
        assert_eq!(takes_zygotes("code-interpreter-v1"), Some(true));
        assert_eq!(takes_zygotes("nodejs"), Some(false));
        assert_eq!(takes_zygotes("desktop"), None);
        // Without its layers it may not have Node.js.
        assert!(!find_recipe("nodejs").unwrap().works_without_layers());
    }

    #[test]
    fn no_name_means_two_templates() {
        let mut names: Vec<_> = RECIPES.iter().flat_map(|recipe| [&[recipe.name], recipe.aliases].concat()).collect();
        names.push("base");
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
