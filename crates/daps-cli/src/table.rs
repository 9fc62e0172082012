//! Plain text tables for people, and output that a closed pipe does not turn into a panic.

use std::io::Write;

/// Prints a line; a reader that has gone away ends the program quietly, and a full disk is an error.
pub fn say(line: &str) {
    match writeln!(std::io::stdout(), "{line}") {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            tell(&format!("error: cannot write the result: {error}"));
            std::process::exit(2);
        }
    }
}

/// Prints a line beside the result, on standard error; where nobody can read it, the work goes on.
pub fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Columns padded to their widest cell; all but the first `left` columns to the right.
pub fn table(head: &[&str], rows: &[Vec<String>], left: usize) -> String {
    let width = |c: usize| {
        rows.iter().map(|r| r[c].chars().count()).chain([head[c].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().enumerate().map(|(c, cell)| {
            let fill = " ".repeat(widths[c] - cell.chars().count());
            if c < left { format!("{cell}{fill}") } else { format!("{fill}{cell}") }
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(head.to_vec())];
    lines.push(widths.iter().map(|w| "-".repeat(*w)).collect::<Vec<_>>().join("  "));
    lines.extend(rows.iter().map(|r| line(r.iter().map(String::as_str).collect())));
    lines.join("\n")
}
