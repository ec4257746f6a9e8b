//! What the checks need to know of a Markdown page: its links and its anchors. Code is left out.

use std::collections::{HashMap, HashSet};

/// A link or an image, with the line on which its target begins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link<'a> {
    pub(crate) line: usize,
    pub(crate) target: &'a str,
}

/// Finds `[text](target)`, `![text](target)`, `[name]: target`, `href="target"` and `src="target"`.
pub(crate) fn links<'a>(prose: &'a str) -> Vec<Link<'a>> {
    let mut found = Vec::new();
    let mut add = |at: usize, target: &'a str| {
        found.push(Link { line: 1 + prose[..at].matches('\n').count(), target });
    };
    for (start, ends) in [("](", &[')', ' ', '\n'][..]), ("href=\"", &['"']), ("src=\"", &['"'])] {
        for (at, _) in prose.match_indices(start) {
            let rest = &prose[at + start.len()..];
            add(at + start.len(), &rest[..rest.find(ends).unwrap_or(rest.len())]);
        }
    }
    let mut at = 0;
    for line in prose.split_inclusive('\n') {
        let named = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        if let Some(target) = named.and_then(|(_, rest)| rest.split_whitespace().next()) {
            add(at, target);
        }
        at += line.len();
    }
    found.sort_by_key(|link| link.line);
    found
}

/// The page with its code and comments blanked out, so that lines and positions stay the same.
pub(crate) fn without_code(page: &str) -> String {
    let mut prose = String::with_capacity(page.len());
    let mut fence: Option<&str> = None;
    for line in page.split_inclusive('\n') {
        let start = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
        let is_code = match (fence, mark) {
            (None, Some(mark)) => {
                fence = Some(mark);
                true
            }
            (Some(open), Some(mark)) if open == mark => {
                fence = None;
                true
            }
            (open, _) => open.is_some(),
        };
        if is_code { prose.push_str(&blank(line)) } else { prose.push_str(line) }
    }
    let prose = blank_between(&prose, "<!--", "-->");
    blank_spans(&prose)
}

/// The anchors of a page: those of its headings, as GitHub and mdBook form them, and ids in HTML.
pub(crate) fn anchors(page: &str) -> HashSet<String> {
    let mut anchors = HashSet::new();
    let mut times: HashMap<String, usize> = HashMap::new();
    // Code spans are part of a heading's text, so only blocks may be left out here.
    for (line, prose) in page.lines().zip(without_code(page).lines()) {
        if !prose.starts_with('#') {
            continue;
        }
        let text = line.trim_start_matches('#');
        if let Some(text) = text.strip_prefix(' ') {
            let slug = slug(text);
            let count = times.entry(slug.clone()).or_default();
            anchors.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
            *count += 1;
        }
    }
    anchors.extend(page.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned));
    anchors
}

fn slug(heading: &str) -> String {
    let letters = link_texts(heading.trim()).to_lowercase();
    let kept = letters.chars().filter(|letter| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// Replaces `[text](target)` by its text.
fn link_texts(heading: &str) -> String {
    let mut parts = heading.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.split_once(')').map_or(part, |(_, rest)| rest));
    }
    text
}

fn blank(text: &str) -> String {
    text.chars()
        .flat_map(|letter| std::iter::repeat_n(if letter == '\n' { '\n' } else { ' ' }, letter.len_utf8()))
        .collect()
}

fn blank_between(text: &str, start: &str, end: &str) -> String {
    let mut rest = text;
    let mut kept = String::with_capacity(text.len());
    while let Some((before, after)) = rest.split_once(start) {
        let Some(length) = after.find(end) else { break };
        kept.push_str(before);
        kept.push_str(&blank(&rest[before.len()..before.len() + start.len() + length + end.len()]));
        rest = &after[length + end.len()..];
    }
    kept + rest
}

/// Blanks out `code` and ``co`de``. A span ends within its paragraph.
fn blank_spans(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::with_capacity(text.len());
    while let Some(at) = rest.find('`') {
        let marks = rest[at..].len() - rest[at..].trim_start_matches('`').len();
        let inside = &rest[at + marks..];
        let paragraph = &inside[..inside.find("\n\n").unwrap_or(inside.len())];
        let length = match closing(paragraph, marks) {
            Some(length) => marks + length + marks,
            None => marks,
        };
        kept.push_str(&rest[..at]);
        kept.push_str(&blank(&rest[at..at + length]));
        rest = &rest[at + length..];
    }
    kept + rest
}

/// The position of a run of exactly this many marks.
fn closing(text: &str, marks: usize) -> Option<usize> {
    let mut at = 0;
    while let Some(found) = text[at..].find('`') {
        let start = at + found;
        let run = text[start..].len() - text[start..].trim_start_matches('`').len();
        if run == marks {
            return Some(start);
        }
        at = start + run;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(page: &str) -> Vec<(usize, String)> {
        let prose = without_code(page);
        links(&prose).iter().map(|link| (link.line, link.target.to_owned())).collect()
    }

    #[test]
    fn links_are_found_with_their_line_also_over_two_lines() {
        let page =
            "see [a\nb](c.md#d) and ![x](y.svg \"title\")\n[name]: other.md\n<a href=\"h.md\"><img src=\"i.svg\"></a>";
        let expected =
            [(2, "c.md#d"), (2, "y.svg"), (3, "other.md"), (4, "h.md"), (4, "i.svg")].map(|(n, t)| (n, t.to_owned()));
        assert_eq!(targets(page), expected);
    }

    #[test]
    fn code_and_comments_have_no_links() {
        let page =
            "`[a](b)` ``x`[a](c)`` \n```sh\n[a](d)\n# no heading\n```\n<!-- [a](e)\n-->\n~~~\n[f](g)\n~~~\n[é](h)";
        assert_eq!(targets(page), [(11, "h".to_owned())]);
        assert_eq!(without_code(page).len(), page.len());
        assert!(anchors(page).is_empty());
    }

    #[test]
    fn anchors_are_those_of_github_and_mdbook() {
        let page = "# Run `isopod run` now\n## Who, and what?\n## Again\n## Again\n### [A link](x.md) here\n#no\n<a id=\"own\"></a>";
        let expected = ["run-isopod-run-now", "who-and-what", "again", "again-1", "a-link-here", "own"];
        assert_eq!(anchors(page), expected.map(str::to_owned).into());
    }
}
