//! Every link within the repository's Markdown files leads to a file and a heading, and the committed results stay small text.

use std::collections::HashMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files under a folder, or the file itself.
fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut paths: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    paths.sort();
    paths.iter().flat_map(|p| files(p)).collect()
}

/// A text without what is shown as code: fenced blocks and what stands between backticks.
fn without_code(text: &str) -> String {
    let mut fenced = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            kept += line;
            kept.push('\n');
        }
    }
    kept.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// The targets of `[words](target)` and `![words](target "title")`; those of `[name]: target` too.
fn targets(text: &str) -> Vec<String> {
    let text = without_code(text);
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let named = text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: ").map(|(_, t)| t));
    inline.chain(named).map(|t| t.trim().trim_matches(['<', '>']).to_owned()).collect()
}

/// What GitHub calls the headings of a text: lower case, without punctuation, hyphens for spaces, a number for those that
/// stand twice.
fn anchors(text: &str) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut fenced = false;
    let mut all = Vec::new();
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if fenced || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let letters = heading.trim().to_lowercase();
        let kept = letters.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let name: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let times = seen.entry(name.clone()).or_default();
        all.push(if *times == 0 { name } else { format!("{name}-{times}") });
        *times += 1;
    }
    all
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut so_far, part| {
        match part {
            Component::ParentDir => _ = so_far.pop(),
            Component::CurDir => {}
            part => so_far.push(part),
        }
        so_far
    })
}

/// Why a link of a file leads nowhere.
fn broken(file: &Path, text: &str, target: &str) -> Option<String> {
    if ["http://", "https://", "mailto:"].iter().any(|scheme| target.starts_with(scheme)) {
        return None;
    }
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let to = match path {
        "" => file.to_owned(),
        path => plain(&file.parent().unwrap().join(path.replace("%20", " "))),
    };
    if !to.exists() {
        return Some("no such file".into());
    }
    let anchor = anchor?;
    let own = if to == file { text.to_owned() } else { fs::read_to_string(&to).unwrap_or_default() };
    (!anchors(&own).iter().any(|a| a == anchor)).then(|| "no such heading".into())
}

#[test]
fn every_link_leads_somewhere() {
    let places = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs",
        "priors",
        "examples",
        "experiments",
        "tests",
        "bench",
    ];
    let all = places.iter().flat_map(|place| files(&root().join(place)));
    let pages: Vec<PathBuf> = all.filter(|p| p.extension().is_some_and(|e| e == "md")).collect();
    assert!(pages.len() > 10, "{pages:?}");
    let (mut links, mut lost) = (0, Vec::new());
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for target in targets(&text) {
            links += 1;
            if let Some(why) = broken(&page, &text, &target) {
                lost.push(format!("{}: {target}: {why}", page.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(links > 30, "only {links} links were found");
    assert!(lost.is_empty(), "links that lead nowhere:\n{}", lost.join("\n"));
}

#[test]
fn links_that_lead_nowhere_are_found() {
    let (file, text) =
        (root().join("README.md"), "# A title: of `code`\n## Twice\n## Twice\n```\n# no heading\n```\n");
    assert_eq!(anchors(text), ["a-title-of-code", "twice", "twice-1"]);
    let why = |target: &str| broken(&file, text, target);
    for target in ["docs", "CHANGELOG.md", "#twice-1", "https://example.org/x", "CHANGELOG.md#unreleased"] {
        assert_eq!(why(target), None, "{target}");
    }
    for target in ["docs/nothing.md", "#thrice", "CHANGELOG.md#nothing", "../README.md"] {
        assert!(why(target).is_some(), "{target}");
    }
    let text = "[a](b.md) `[c](d.md)` ![e](f.png \"g\")\n```\n[h](i.md)\n```\n[j]: k.md\n";
    assert_eq!(targets(text), ["b.md", "f.png", "k.md"]);
}

/// A clone should not pay for pictures that `daps experiment` draws again.
#[test]
fn committed_results_are_text_and_small() {
    let all = files(&root().join("bench/results"));
    let is_text = |p: &PathBuf| {
        p.extension()
            .is_some_and(|e| ["csv", "json", "jsonl", "md", "toml", "txt"].iter().any(|kind| e == *kind))
    };
    let others: Vec<&PathBuf> = all.iter().filter(|p| !is_text(p)).collect();
    assert!(others.is_empty(), "{others:?}");
    let bytes: u64 = all.iter().map(|p| fs::metadata(p).unwrap().len()).sum();
    assert!(bytes < 5_000_000, "{bytes} bytes");
}
