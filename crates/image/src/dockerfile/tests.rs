//! What the parser accepts and what it refuses.

use proptest::prelude::*;

use super::*;

fn only(text: &str) -> Instruction {
    let file = Dockerfile::parse(&format!("FROM scratch\n{text}")).unwrap();
    file.stages[0].instructions[0].instruction.clone()
}

fn error(text: &str) -> (u32, String) {
    let error = Dockerfile::parse(text).unwrap_err();
    (error.line, error.message)
}

#[test]
fn errors_point_at_their_line() {
    for (text, line) in [
        ("", 1),
        ("RUN x", 1),
        ("FROM a\n\nJUMP high", 3),
        ("FROM a\nRUN", 2),
        ("FROM a AS 1x", 1),
        ("FROM a b", 1),
        ("FROM a\n# note\nCOPY x", 3),
        ("FROM a\nCOPY a b c", 2),
        ("FROM a\nRUN cat <<EOF\nx\n", 2),
        ("FROM a\nENV X", 2),
        ("FROM a\nSHELL bash", 2),
        ("FROM a\nONBUILD FROM b", 2),
        ("FROM a\nRUN --mount=type=secret,id=x y", 2),
        ("FROM a\nHEALTHCHECK x", 2),
        ("# escape=x\nFROM a", 1),
        ("FROM a\0", 1),
    ] {
        assert_eq!(error(text).0, line, "{text:?}");
    }
    assert_eq!(error("FROM a\nCOPY --form=b x y"), (2, "COPY --form is not supported".to_owned()));
}

#[test]
fn stages_are_found_by_name_and_number() {
    let file = Dockerfile::parse("ARG V=1\nFROM a:$V AS Build\nRUN x\nFROM scratch\nCOPY --from=build /x /").unwrap();
    assert_eq!(file.global_args.len(), 1);
    assert_eq!((file.stage(Some("BUILD")), file.stage(Some("1")), file.stage(None)), (Some(0), Some(1), Some(1)));
    assert_eq!((file.stage(Some("2")), file.stage(Some("other"))), (None, None));
}

#[test]
fn continued_lines_may_have_comments_between() {
    let text = "RUN a \\\n  # note\n\n  b \\\n  && c";
    let Instruction::Run { command, .. } = only(text) else { panic!("not a run") };
    assert_eq!(command, Command::Shell("a   b   && c".to_owned()));
    let windows = "# escape=`\nFROM a\nRUN a `\n b";
    assert_eq!(Dockerfile::parse(windows).unwrap().stages[0].instructions[0].text, "RUN a  b");
}

#[test]
fn commands_are_shell_lines_or_lists() {
    let run = |text| match only(text) {
        Instruction::Run { command, .. } => command,
        other => panic!("{other:?}"),
    };
    assert_eq!(run(r#"RUN ["a", "b c"]"#), Command::Exec(vec!["a".to_owned(), "b c".to_owned()]));
    assert_eq!(run("RUN [ -f x ] && y"), Command::Shell("[ -f x ] && y".to_owned()));
    assert_eq!(run("run --network=default x"), Command::Shell("x".to_owned()));
}

#[test]
fn here_documents_belong_to_their_instruction() {
    let text = "RUN <<EOF\nset -e\necho $X\nEOF\nRUN python3 <<-'PY' && true\n\tprint(1)\n\tPY\nRUN cat <<<EOF";
    let file = Dockerfile::parse(&format!("FROM a\n{text}")).unwrap();
    let heredocs: Vec<_> = file.stages[0]
        .instructions
        .iter()
        .map(|located| match &located.instruction {
            Instruction::Run { heredocs, .. } => heredocs.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(heredocs[0][0].body, "set -e\necho $X\n");
    assert_eq!((heredocs[1][0].body.as_str(), heredocs[1][0].expands), ("print(1)\n", false));
    assert!(heredocs[2].is_empty());
    let copy = "COPY <<a.txt <<b.txt /etc/\none\na.txt\ntwo\nb.txt";
    let Instruction::Copy { heredocs, destination, sources, .. } = only(copy) else { panic!("not a copy") };
    assert_eq!((heredocs.len(), destination.as_str(), sources.len()), (2, "/etc/", 0));
}

#[test]
fn variables_are_written_in_two_ways() {
    let env = |text| match only(text) {
        Instruction::Env(variables) => variables.into_iter().map(|v| (v.name, v.value.unwrap())).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(env("ENV A=1 B=\"x y\" C=a\\ b"), [pair("A", "1"), pair("B", "\"x y\""), pair("C", "a\\ b")]);
    assert_eq!(env("ENV A some words = more"), [pair("A", "some words = more")]);
}

#[test]
fn variables_are_expanded_as_docker_does() {
    let lookup = |name: &str| match name {
        "A" => Some("1".to_owned()),
        "E" => Some(String::new()),
        _ => None,
    };
    for (text, wanted) in [
        ("$A${A}x", "11x"),
        ("$Ax", ""),
        ("\\$A", "$A"),
        ("'$A' \"$A\"", "$A 1"),
        ("${E:-d}${E-d}", "d"),
        ("${U-${A}}", "1"),
        ("${A:+s}${U:+s}", "s"),
        ("a\\ b", "a b"),
        ("$", "$"),
        ("$(x)", "$(x)"),
        ("\"a\\nb\"", "a\\nb"),
        ("C:\\", "C:\\"),
    ] {
        assert_eq!(expand(text, '\\', &lookup).unwrap(), wanted, "{text:?}");
    }
    assert_eq!(expand("${A", '\\', &lookup), Err(ExpandError::Unclosed));
    assert!(expand("${A%x}", '\\', &lookup).is_err());
    assert!(expand("${U:?no}", '\\', &lookup).is_err());
    assert_eq!(expand(&("${U:-".repeat(40) + &"}".repeat(40)), '\\', &lookup), Err(ExpandError::Deep));
}

#[test]
fn patterns_stay_within_a_name_unless_doubled() {
    for (pattern, path, fits) in [
        ("*.py", "a.py", true),
        ("*.py", "d/a.py", false),
        ("**/*.py", "d/e/a.py", true),
        ("**/*.py", "a.py", true),
        ("d/**", "d/e/f", true),
        ("?[a-c]", "xb", true),
        ("[^a]", "a", false),
        ("a\\*", "a*", true),
        ("[", "[", true),
    ] {
        assert_eq!(glob_matches(pattern, path), fits, "{pattern} {path}");
    }
}

#[test]
fn a_pattern_of_many_stars_is_not_slow() {
    // If the work grew with the square of the path's length, this would take hours.
    let path = "a/".repeat(2000);
    for stars in ["**", "**/", "*?", "*"] {
        assert!(!glob_matches(&format!("{}!", stars.repeat(4000)), &path), "{stars}");
    }
}

#[test]
fn the_last_rule_that_fits_decides_what_is_ignored() {
    let rules = IgnoreRules::parse("# note\n*.log\n/node_modules/\n!keep.log\nd/*\n!d/x\n").unwrap();
    for (path, ignored) in [
        ("a.log", true),
        ("keep.log", false),
        ("node_modules/a/b", true),
        ("d/y", true),
        ("d/x", false),
        ("src/a.log", false),
    ] {
        assert_eq!(rules.ignores(path), ignored, "{path}");
    }
}

#[test]
fn more_rules_than_can_be_compared_are_refused() {
    let rules = |count: usize| IgnoreRules::parse(&"x\n".repeat(count));
    assert!(rules(MAX_RULES).is_ok());
    assert_eq!(rules(MAX_RULES + 1), Err(PatternError::Rules));
    assert_eq!(rules(2_000_000), Err(PatternError::Bytes));
    assert_eq!(IgnoreRules::parse(&"x".repeat(5000)), Err(PatternError::Long));
    assert_eq!(Patterns::parse(&vec![String::new(); MAX_RULES + 1]), Err(PatternError::Rules));
    assert!(Patterns::parse(&["a*".to_owned()]).unwrap().match_any("ab"));
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "(FROM a\n)?[A-Z ]{0,6}[ -~\n\\\\<\"'$\\[\\]{}]{0,120}") {
        let _ = Dockerfile::parse(&text);
        let _ = expand(&text, '\\', &|_| Some("x".to_owned()));
        let _ = glob_matches(&text, "some/path.txt");
        let _ = IgnoreRules::parse(&text).unwrap().ignores("a/b");
    }

    #[test]
    fn a_rule_ignores_what_its_pattern_fits_and_what_is_below(pattern in "[ab*?/]{1,8}", path in "[ab]{1,2}(/[ab]{1,2}){0,3}") {
        let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty()).collect();
        prop_assume!(!parts.is_empty());
        let parents = path.match_indices('/').map(|(index, _)| &path[..index]);
        let wanted = parents.chain([path.as_str()]).any(|part| glob_matches(&parts.join("/"), part));
        assert_eq!(IgnoreRules::parse(&pattern).unwrap().ignores(&path), wanted);
    }
}
