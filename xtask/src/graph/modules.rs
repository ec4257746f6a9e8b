//! The modules of one target: their files, their length, and the paths to each other.
//!
//! Files are found as the compiler finds them, from the root by `mod`. Code that only tests or fuzzing compile is left
//! out, with its lines and the files it declares.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::cursor::{Attributes, Cursor};
use super::tokens::{Kind, tokenize};

/// The name of the root among the modules.
pub(crate) const ROOT: &str = "(root)";

/// One target: a library, a program or a build script.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    /// Top-level modules with their lines, including those of the modules below them. The root's are under [`ROOT`].
    pub(crate) lines: BTreeMap<String, usize>,
    pub(crate) files: usize,
    /// Where a top-level module names another one.
    pub(crate) uses: Vec<Use>,
}

/// A path in one top-level module that leads to another one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Use {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) file: PathBuf,
    pub(crate) line: usize,
    /// Relative to the root of the crate.
    pub(crate) path: String,
}

impl Modules {
    /// Reads the target whose root is `file`.
    pub(crate) fn read(file: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Self, String> {
        let mut scan = Scan { read, found: Found::default() };
        scan.file(file, Place::root(file))?;
        Ok(scan.found.resolve())
    }
}

/// The content of the files, before names are resolved.
#[derive(Debug, Default)]
struct Found {
    lines: BTreeMap<String, usize>,
    files: usize,
    paths: Vec<FoundPath>,
    /// The names that the root imports or exports, and their paths.
    aliases: BTreeMap<String, Vec<String>>,
    /// Modules whose macros every later one may use without a path.
    macro_modules: BTreeSet<String>,
    /// Such macros, and their modules.
    macros: BTreeMap<String, String>,
    macro_calls: Vec<FoundPath>,
}

#[derive(Debug)]
struct FoundPath {
    /// The top-level module that contains it.
    module: String,
    file: PathBuf,
    line: usize,
    /// From the root.
    path: Vec<String>,
}

impl Found {
    fn resolve(self) -> Modules {
        let uses = self.paths.iter().filter_map(|found| Some((self.target(&found.path)?, found)));
        let macros =
            self.macro_calls.iter().filter_map(|found| Some((self.macros.get(&found.path[0])?.clone(), found)));
        let uses = uses.chain(macros).filter(|(to, found)| *to != found.module);
        let uses: BTreeSet<Use> = uses.map(|(to, found)| Use::new(to, found)).collect();
        Modules { lines: self.lines, files: self.files, uses: uses.into_iter().collect() }
    }

    /// Returns the top-level module that `path` leads to, or `None` if it leads out of the crate.
    fn target(&self, path: &[String]) -> Option<String> {
        let Some(first) = path.first() else { return Some(ROOT.to_owned()) };
        if self.lines.contains_key(first) {
            return Some(first.clone());
        }
        match self.aliases.get(first).and_then(|path| path.first()) {
            Some(module) => self.lines.contains_key(module).then(|| module.clone()),
            None => Some(ROOT.to_owned()),
        }
    }
}

impl Use {
    fn new(to: String, found: &FoundPath) -> Self {
        let path = found.path.join("::");
        Self { from: found.module.clone(), to, file: found.file.clone(), line: found.line, path }
    }
}

/// The position of a piece of source in the tree of modules.
#[derive(Debug, Clone)]
struct Place {
    path: Vec<String>,
    /// The directory of the files of modules that are declared here.
    directory: PathBuf,
}

impl Place {
    fn root(file: &Path) -> Self {
        Self { path: Vec::new(), directory: file.parent().unwrap_or(Path::new("")).to_owned() }
    }

    fn below(&self, name: &str) -> Self {
        let path = self.path.iter().cloned().chain([name.to_owned()]).collect();
        Self { path, directory: self.directory.join(name) }
    }

    fn module(&self) -> &str {
        self.path.first().map_or(ROOT, String::as_str)
    }
}

struct Scan<'a> {
    read: &'a dyn Fn(&Path) -> Option<String>,
    found: Found,
}

impl Scan<'_> {
    fn file(&mut self, file: &Path, place: Place) -> Result<(), String> {
        let source = (self.read)(file).ok_or_else(|| format!("cannot read {}", file.display()))?;
        let tokens = tokenize(&source);
        let module = place.module().to_owned();
        let mut cursor = Cursor::new(&tokens, file);
        self.items(&mut cursor, &place)?;
        let lines = source.lines().count() - cursor.test_lines.len();
        *self.found.lines.entry(module).or_default() += lines;
        self.found.files += 1;
        Ok(())
    }

    /// Parses everything up to the closing brace of this module, or the end of the file.
    fn items(&mut self, cursor: &mut Cursor<'_>, place: &Place) -> Result<(), String> {
        let mut depth = 0_usize;
        while let Some(token) = cursor.peek() {
            let (attributes, first_line) = (cursor.attributes(), token.line);
            if attributes.test {
                cursor.skip_item(first_line);
                continue;
            }
            cursor.skip_visibility();
            let Some(token) = cursor.peek() else { break };
            match &token.kind {
                Kind::Sign('{') => depth += 1,
                Kind::Sign('}') if depth == 0 => return Ok(()),
                Kind::Sign('}') => depth -= 1,
                Kind::Word(word) => {
                    self.word(word, cursor, place, &attributes)?;
                    continue;
                }
                _ => {}
            }
            cursor.at += 1;
        }
        Ok(())
    }

    /// Parses `word` and what belongs to it.
    fn word(
        &mut self,
        word: &str,
        cursor: &mut Cursor<'_>,
        place: &Place,
        attributes: &Attributes,
    ) -> Result<(), String> {
        match word {
            "mod" if cursor.word_at(1).is_some() => self.module(cursor, place, attributes),
            "use" if !cursor.is_at(1, '<') => {
                self.import(cursor, place);
                Ok(())
            }
            "macro_rules" if cursor.is_at(1, '!') => {
                self.macro_definition(cursor, place);
                Ok(())
            }
            _ => {
                self.mention(cursor, place);
                Ok(())
            }
        }
    }

    /// Parses `mod name;` or `mod name { … }`.
    fn module(&mut self, cursor: &mut Cursor<'_>, place: &Place, attributes: &Attributes) -> Result<(), String> {
        let name = cursor.word_at(1).unwrap_or_default().to_owned();
        let below = place.below(&name);
        cursor.at += 2;
        if attributes.macro_use {
            self.found.macro_modules.insert(below.module().to_owned());
        }
        if place.path.is_empty() {
            self.found.lines.entry(name).or_default();
        }
        if cursor.take('{') {
            self.items(cursor, &below)?;
            cursor.at += 1;
            return Ok(());
        }
        let (file, below) = match &attributes.path {
            Some(path) => {
                let file = cursor.file.parent().unwrap_or(Path::new("")).join(path);
                let directory = file.parent().unwrap_or(Path::new("")).to_owned();
                (file, Place { directory, ..below })
            }
            None => (self.find(&below)?, below),
        };
        self.file(&file, below)
    }

    fn find(&self, place: &Place) -> Result<PathBuf, String> {
        let candidates = [place.directory.with_extension("rs"), place.directory.join("mod.rs")];
        let found = candidates.iter().find(|file| (self.read)(file).is_some());
        found.cloned().ok_or_else(|| format!("no file found for the module {}", place.path.join("::")))
    }

    /// Parses `use …;`.
    fn import(&mut self, cursor: &mut Cursor<'_>, place: &Place) {
        let exported = cursor.before(1, |token| token.is_word("pub") || token.is(')'));
        cursor.at += 1;
        let mut imports = Vec::new();
        cursor.use_tree(&[], &mut imports);
        for import in imports {
            let Some(path) = absolute(&import.path, place) else { continue };
            // A re-export at the root is the crate's interface, not a use.
            let face = place.path.is_empty() && exported;
            if place.path.is_empty() {
                self.found.aliases.insert(import.name, path.clone());
            }
            if !face {
                self.found.paths.push(found_path(cursor, place, import.line, path));
            }
        }
    }

    fn macro_definition(&mut self, cursor: &mut Cursor<'_>, place: &Place) {
        let name = cursor.word_at(2).unwrap_or_default().to_owned();
        if self.found.macro_modules.contains(place.module()) {
            self.found.macros.insert(name, place.module().to_owned());
        }
        cursor.at += 3;
    }

    /// Parses a path in code, or a word that is none.
    fn mention(&mut self, cursor: &mut Cursor<'_>, place: &Place) {
        let line = cursor.peek().map_or(0, |token| token.line);
        let joined = cursor.before(1, |token| token.kind == Kind::Path || token.is('.'));
        let words = cursor.path();
        if joined {
            return;
        }
        if words.len() > 1 {
            if let Some(path) = absolute(&words, place) {
                self.found.paths.push(found_path(cursor, place, line, path));
            }
        } else if cursor.is_at(0, '!') {
            self.found.macro_calls.push(found_path(cursor, place, line, words));
        }
    }
}

fn found_path(cursor: &Cursor<'_>, place: &Place, line: usize, path: Vec<String>) -> FoundPath {
    FoundPath { module: place.module().to_owned(), file: cursor.file.to_owned(), line, path }
}

/// Returns `path` relative to the root. Returns `None` if it starts with a name that is not the root's: another crate,
/// an import (which was counted where it was imported), or a module below this one.
fn absolute(path: &[String], place: &Place) -> Option<Vec<String>> {
    let mut base = match path.first()?.as_str() {
        "crate" => &[],
        "self" | "super" => place.path.as_slice(),
        _ => return place.path.is_empty().then(|| path.to_vec()),
    };
    let mut rest = path;
    while let Some(("crate" | "self" | "super", after)) =
        rest.split_first().map(|(first, after)| (first.as_str(), after))
    {
        if rest[0] == "super" {
            base = base.split_last().map_or(base, |(_, above)| above);
        }
        rest = after;
    }
    Some(base.iter().chain(rest).cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a crate with these files, whose root is the first.
    fn read(files: &[(&str, &str)]) -> Modules {
        let files: BTreeMap<PathBuf, String> =
            files.iter().map(|(path, source)| (PathBuf::from(path), (*source).to_owned())).collect();
        Modules::read(Path::new("src/lib.rs"), &|path| files.get(path).cloned()).unwrap()
    }

    /// Formats each use as `from > to file:line`.
    fn uses(modules: &Modules) -> Vec<String> {
        let shown = modules.uses.iter().map(|found| {
            let file = found.file.strip_prefix("src").unwrap().display();
            format!("{} > {} {file}:{}", found.from, found.to, found.line)
        });
        shown.collect()
    }

    /// Returns what `a` uses if this is its source, in a crate with modules `a` and `b`.
    fn used_by(source: &str) -> Vec<String> {
        uses(&read(&[("src/lib.rs", "mod a; mod b; mod c;"), ("src/a.rs", source), ("src/b.rs", ""), ("src/c.rs", "")]))
    }

    #[test]
    fn paths_to_other_modules_are_found_with_their_lines() {
        assert_eq!(used_by("use crate::b::X;"), ["a > b a.rs:1"]);
        assert_eq!(used_by("fn f() {\n  let x: crate::b::X = super::c::y();\n}"), ["a > b a.rs:2", "a > c a.rs:2"]);
        assert_eq!(used_by("pub use super::b::X;"), ["a > b a.rs:1"]);
        assert_eq!(
            used_by("use crate::{\n  b::{X, y::*},\n  c as d,\n};"),
            ["a > b a.rs:2", "a > b a.rs:2", "a > c a.rs:3"]
        );
        assert_eq!(used_by("use crate::{self as own, b};"), ["a > (root) a.rs:1", "a > b a.rs:1"]);
        assert_eq!(used_by("mod inner { fn f() { super::super::b::g() } }"), ["a > b a.rs:1"]);
        assert_eq!(used_by("mod inner { } use crate::b::X;"), ["a > b a.rs:1"]);
    }

    #[test]
    fn what_is_no_path_to_another_module_is_not_found() {
        assert_eq!(used_by("use crate::a::X; use self::y::Z; use b::X; use ::b::X; use other::crate_b::X;"), [""; 0]);
        assert_eq!(used_by("// crate::b::X\nconst S: &str = \"crate::b::X\";"), [""; 0]);
        assert_eq!(used_by("pub(in crate::b) fn f() {} pub(crate) fn g() {} struct T(pub(in crate::c) u8);"), [""; 0]);
        assert_eq!(used_by("fn f<'a>() -> impl Sized + use<'a> { x.crate_::b() }"), [""; 0]);
    }

    #[test]
    fn test_code_is_left_out_with_its_lines_and_files() {
        let source = "use crate::b::X;\n#[cfg(test)]\nmod tests {\n  use crate::c::Y;\n}\n\
            #[cfg(test)]\nmod more;\n#[cfg(all(test, unix))]\nuse crate::c::{Z, W};\nfn after() {}\n";
        let modules =
            read(&[("src/lib.rs", "mod a; mod b; mod c;"), ("src/a.rs", source), ("src/b.rs", ""), ("src/c.rs", "")]);
        assert_eq!(uses(&modules), ["a > b a.rs:1"]);
        assert_eq!(modules.lines["a"], 2);
        assert_eq!(modules.files, 4);
    }

    #[test]
    fn test_code_ends_where_it_ends() {
        for test_only in [
            "#[cfg(test)] const X: Y = crate::c::Y { z: 1 };",
            "#[cfg(test)] pub(crate) fn f<A, B>() -> crate::c::Y { g(); }",
            "#[test] fn f() { crate::c::g() }",
            "#[cfg(test)] #[derive(Debug)] struct X(crate::c::Y);",
            "#[cfg(test)] proptest! { fn f() { crate::c::g() } }",
            "#[cfg(feature = \"fuzzing\")] pub mod fuzzing { use crate::c::X; }",
        ] {
            assert_eq!(used_by(&format!("{test_only} use crate::b::X;")), ["a > b a.rs:1"], "{test_only}");
        }
        let field = "struct S {\n #[cfg(test)]\n x: Map<u8, crate::c::X>,\n y: crate::b::Y }";
        assert_eq!(used_by(field), ["a > b a.rs:4", "a > c a.rs:3"], "a comma within angle brackets ends the field");
        assert_eq!(used_by("match x { #[cfg(test)] X { y } => crate::c::z() } crate::b::w();"), ["a > b a.rs:1"]);
        assert_eq!(used_by("#[cfg(not(test))] use crate::b::X;"), ["a > b a.rs:1"]);
        assert_eq!(used_by("#[cfg(feature = \"rpc\")] use crate::b::X;"), ["a > b a.rs:1"]);
    }

    #[test]
    fn names_of_the_root_lead_to_what_is_behind_them() {
        let root = "mod a; mod b;\npub use b::{X, y::Z as W};\npub use elsewhere::V;\npub fn own() {}\n";
        let source = "use crate::X;\nuse crate::W;\nuse crate::V;\nuse crate::own;\n";
        let modules = read(&[("src/lib.rs", root), ("src/a.rs", source), ("src/b.rs", "")]);
        assert_eq!(uses(&modules), ["a > (root) a.rs:4", "a > b a.rs:1", "a > b a.rs:2"]);
    }

    #[test]
    fn the_root_uses_what_its_own_code_names() {
        let modules = read(&[
            ("src/lib.rs", "mod a; mod b;\nuse a::X;\nfn f() { b::g() }\npub use b::Y;"),
            ("src/a.rs", "fn f() { crate::f() }"),
            ("src/b.rs", ""),
        ]);
        assert_eq!(uses(&modules), ["(root) > a lib.rs:2", "(root) > b lib.rs:3", "a > (root) a.rs:1"]);
    }

    #[test]
    fn files_are_found_as_the_compiler_finds_them() {
        let modules = read(&[
            ("src/lib.rs", "mod a; mod b; mod c;"),
            ("src/a/mod.rs", "mod deep;"),
            ("src/a/deep.rs", "mod deeper;\n"),
            ("src/a/deep/deeper.rs", "use super::super::super::c::X;\nuse super::super::Y;\n"),
            ("src/b.rs", "mod under; #[path = \"other/file.rs\"] pub(crate) mod named;"),
            ("src/b/under.rs", "mod inline { mod last; }"),
            ("src/b/under/inline/last.rs", "use crate::a::X;"),
            ("src/other/file.rs", "use crate::c::X;"),
            ("src/c.rs", ""),
        ]);
        assert_eq!(
            uses(&modules),
            ["a > c a/deep/deeper.rs:1", "b > a b/under/inline/last.rs:1", "b > c other/file.rs:1"]
        );
        assert_eq!((modules.files, modules.lines["a"]), (9, 4));
    }

    #[test]
    fn macros_in_scope_everywhere_lead_to_their_module() {
        let root = "#[macro_use] mod b; mod a;";
        let modules = read(&[
            ("src/lib.rs", root),
            ("src/a.rs", "fn f() { say!(1); own!(); }\nmacro_rules! own { () => {} }"),
            ("src/b.rs", "macro_rules! say { ($x:expr) => { $crate::a::print($x) } }"),
        ]);
        assert_eq!(uses(&modules), ["a > b a.rs:1", "b > a b.rs:1"]);
    }

    #[test]
    fn a_module_without_a_file_is_an_error() {
        let missing = Modules::read(Path::new("src/lib.rs"), &|path| {
            (path == Path::new("src/lib.rs")).then(|| "mod a;".to_owned())
        });
        assert_eq!(missing.unwrap_err(), "no file found for the module a");
    }
}
