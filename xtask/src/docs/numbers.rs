//! The numbers of the README are those of the pages that measurements write. Each row below its heading "Numbers" has a
//! source here, and its cells must be equal to those of the source, letter by letter.

use super::Repository;

const README: &str = "README.md";
const SECTION: &str = "## Numbers";
const RESULTS: &str = "docs/bench/results.md";

/// A row of the README, by its first cell, and where its numbers come from.
struct Claim {
    row: &'static str,
    page: &'static str,
    source: Source,
}

enum Source {
    /// The p50 and p99 of the table row with this first cell.
    Times(&'static str),
    /// The cell in this row and column of a table.
    Cell(&'static str, &'static str),
    /// A sentence that the page contains, with this word in it.
    Sentence(&'static str),
}

use Source::{Cell, Sentence, Times};

const CLAIMS: &[Claim] = &[
    Claim { row: "create, from the pool", page: RESULTS, source: Times("from the ready pool") },
    Claim { row: "create, cold", page: RESULTS, source: Times("cold: from a prepared slot") },
    Claim { row: "`bwrap --unshare-all true`", page: RESULTS, source: Times("peer: bwrap --unshare-all true") },
    Claim { row: "`runc run true`", page: RESULTS, source: Times("peer: runc run true") },
    Claim { row: "SDK: create", page: RESULTS, source: Times("create") },
    Claim { row: "SDK: create and run a command", page: RESULTS, source: Times("create → first command") },
    Claim { row: "SDK: create and run a cell", page: RESULTS, source: Times("create → first run_code, ms") },
    Claim { row: "SDK: run a cell", page: RESULTS, source: Times("warm run_code(1+1), ms") },
    Claim {
        row: "ipykernel without a sandbox: run a cell",
        page: RESULTS,
        source: Times("peer: ipykernel, warm 1+1, ms"),
    },
    Claim { row: "sandboxes created and removed per second", page: RESULTS, source: Cell("8", "per second") },
    Claim {
        row: "memory per idle sandbox, kernel included",
        page: RESULTS,
        source: Cell("memory of the host per sandbox, kernel included", "value"),
    },
    Claim {
        row: "[attempts to escape](docs/security/escape-suite.md)",
        page: "docs/security/escape-suite.md",
        source: Sentence("attempts"),
    },
    Claim { row: "[chaos suite](docs/chaos.md)", page: "docs/chaos.md", source: Sentence("kills (") },
];

pub(crate) fn check(repository: &Repository) -> Vec<String> {
    check_claims(repository, CLAIMS).unwrap_or_else(|reason| vec![reason])
}

fn check_claims(repository: &Repository, claims: &[Claim]) -> Result<Vec<String>, String> {
    let section = section(repository.text(README)?)?;
    let mut wrong = Vec::new();
    let rows: Vec<Vec<&str>> = tables(section).into_iter().flat_map(|table| table.rows).collect();
    for row in &rows {
        let verdict = match claims.iter().find(|claim| claim.row == row[0]) {
            Some(claim) => compare(claim, &row[1..], repository.text(claim.page)?),
            None => Err("xtask/src/docs/numbers.rs doesn't know its source".to_owned()),
        };
        wrong.extend(verdict.err().map(|reason| format!("{README}: {}: {reason}", row[0])));
    }
    let lost = claims.iter().filter(|claim| !rows.iter().any(|row| row[0] == claim.row));
    wrong.extend(lost.map(|claim| format!("{README}: {SECTION} has lost its row `{}`", claim.row)));
    wrong.extend(check_date(section, repository.text(RESULTS)?).err());
    Ok(wrong)
}

/// Whether the cells of a row are those of its source.
fn compare(claim: &Claim, cells: &[&str], page: &str) -> Result<(), String> {
    let cell = |row, column| {
        let found = tables(page).iter().find_map(|table| table.cell(row, column).map(str::to_owned));
        found.ok_or_else(|| format!("{} has no {column} of `{row}`", claim.page))
    };
    let measured = match claim.source {
        Times(row) => vec![cell(row, "p50")?, cell(row, "p99")?],
        Cell(row, column) => vec![cell(row, column)?],
        Sentence(word) => vec![sentence(page, word).ok_or_else(|| format!("{} says no number of {word}", claim.page))?],
    };
    let shown: Vec<&str> = cells.iter().copied().filter(|cell| !cell.is_empty()).collect();
    if shown == measured {
        return Ok(());
    }
    Err(format!("it says {}, and {} says {}", shown.join(" and "), claim.page, measured.join(" and ")))
}

/// The part of the first line with `NUMBER word` that starts with the number, without its mark-up and its full stop.
fn sentence(page: &str, word: &str) -> Option<String> {
    page.lines().find_map(|line| {
        let before = &line[..line.find(&format!(" {word}"))?];
        let digits = before.len() - before.trim_end_matches(|letter: char| letter.is_ascii_digit()).len();
        let text = line[before.len() - digits..].trim_end_matches(['.', '*']);
        (digits > 0).then(|| text.to_owned())
    })
}

/// The README names the day of the measurement.
fn check_date(section: &str, results: &str) -> Result<(), String> {
    let date = results.lines().find_map(|line| line.strip_prefix("- date: ")?.split('T').next());
    let date = date.ok_or_else(|| format!("{RESULTS} has no date"))?;
    if section.contains(date) {
        Ok(())
    } else {
        Err(format!("{README}: {SECTION} doesn't name {date}, the date of {RESULTS}"))
    }
}

/// The text between the heading and the next one.
fn section(readme: &str) -> Result<&str, String> {
    let (_, rest) = readme.split_once(&format!("\n{SECTION}\n")).ok_or_else(|| format!("{README} has no {SECTION}"))?;
    Ok(rest.split("\n## ").next().unwrap_or(rest))
}

#[derive(Debug)]
struct Table<'a> {
    head: Vec<&'a str>,
    rows: Vec<Vec<&'a str>>,
}

impl<'a> Table<'a> {
    /// The column of a time is `p50` or `p50 ms`.
    fn cell(&self, row: &str, column: &str) -> Option<&'a str> {
        let number = self.head.iter().position(|name| name.strip_suffix(" ms").unwrap_or(name) == column)?;
        let row = self.rows.iter().find(|cells| cells[0] == row)?;
        row.get(number).copied()
    }
}

fn tables(page: &str) -> Vec<Table<'_>> {
    let mut tables: Vec<Table<'_>> = Vec::new();
    let mut is_inside = false;
    for line in page.lines() {
        let cells = cells(line);
        match (is_inside, cells) {
            (false, Some(head)) => tables.push(Table { head, rows: Vec::new() }),
            (true, Some(row)) if !line.starts_with("|---") => {
                if let Some(table) = tables.last_mut() {
                    table.rows.push(row);
                }
            }
            _ => {}
        }
        is_inside = line.starts_with('|');
    }
    tables
}

fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(str::trim).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIMS: &[Claim] = &[
        Claim { row: "create", page: RESULTS, source: Times("from the pool") },
        Claim { row: "per second", page: RESULTS, source: Cell("8", "per second") },
        Claim { row: "attacks", page: "attacks.md", source: Sentence("attempts") },
    ];
    const README_TEXT: &str = "# X\n\n## Numbers\n\nOn 2026-01-02.\n\n| what | p50 | p99 |\n|---|---|---|\n| create | 0.5 | 1.50 |\n\n\
        | what | number |\n|---|---|\n| per second | 320 |\n| attacks | 17 attempts, all held off |\n\n## Other\n\n| no | claim |\n";
    const RESULTS_TEXT: &str = "- date: 2026-01-02T03:04:05Z\n\n| create | n | p50 ms | p99 ms |\n|---|---|---|---|\n\
        | from the pool | 9 | 0.5 | 1.50 |\n\n| callers | per second |\n|---|---|\n| 2 | 300 |\n| 8 | 320 |\n";
    const ATTACKS_TEXT: &str = "Some attempts.\nKernel 6, 17 attempts, all held off.\n";

    fn verdict(readme: &str, results: &str, attacks: &str) -> Vec<String> {
        let repository = Repository::of(&[(README, readme), (RESULTS, results), ("attacks.md", attacks)]);
        check_claims(&repository, CLAIMS).unwrap()
    }

    #[test]
    fn equal_numbers_pass() {
        assert_eq!(verdict(README_TEXT, RESULTS_TEXT, ATTACKS_TEXT), Vec::<String>::new());
    }

    #[test]
    fn a_change_of_any_number_on_either_side_is_found() {
        for (old, new) in [("0.5", "0.6"), ("1.50", "1.5"), ("320", "321"), ("2026-01-02", "2026-01-03")] {
            assert_eq!(
                verdict(&README_TEXT.replace(old, new), RESULTS_TEXT, ATTACKS_TEXT).len(),
                1,
                "{old} in the README"
            );
            assert_eq!(
                verdict(README_TEXT, &RESULTS_TEXT.replace(old, new), ATTACKS_TEXT).len(),
                1,
                "{old} in the results"
            );
        }
        assert_eq!(verdict(&README_TEXT.replace("17", "7"), RESULTS_TEXT, ATTACKS_TEXT).len(), 1);
        assert_eq!(verdict(README_TEXT, RESULTS_TEXT, &ATTACKS_TEXT.replace("17", "117")).len(), 1);
        assert_eq!(verdict(README_TEXT, RESULTS_TEXT, &ATTACKS_TEXT.replace("all", "most")).len(), 1);
    }

    #[test]
    fn a_row_without_a_source_and_a_source_without_a_row_are_found() {
        let renamed = README_TEXT.replace("| create |", "| creation |");
        let wrong = verdict(&renamed, RESULTS_TEXT, ATTACKS_TEXT);
        assert!(wrong[0].contains("creation: xtask") && wrong[1].contains("lost its row `create`"), "{wrong:?}");
        let gone = verdict(README_TEXT, &RESULTS_TEXT.replace("from the pool", "cold"), ATTACKS_TEXT);
        assert!(gone[0].contains("has no p50 of `from the pool`"), "{gone:?}");
        assert!(check_claims(&Repository::of(&[(README, "# X")]), CLAIMS).is_err());
    }
}
