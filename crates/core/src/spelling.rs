//! The word that was meant: finds the nearest of a few known words to a misspelt one.

/// The candidate nearest to `word`, if it is near enough to be worth a suggestion: one edit per three letters, at most
/// three, or the beginning of just one candidate.
///
/// An edit inserts, drops, changes or swaps a letter; upper and lower case, `-` and `_` are the same.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > MAX_LEN {
        return None;
    }
    let fold = |s: &str| -> Vec<char> {
        s.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
    };
    let word = fold(word);
    let limit = (word.len().div_ceil(3)).min(3);
    let candidates: Vec<(&str, Vec<char>)> =
        candidates.into_iter().filter(|c| c.len() <= MAX_LEN).map(|c| (c, fold(c))).collect();
    let near = candidates
        .iter()
        .map(|(c, folded)| (distance(&word, folded), *c))
        .filter(|&(d, _)| d <= limit)
        .min_by_key(|&(d, _)| d);
    let mut begun = candidates.iter().filter(|(_, folded)| word.len() >= 3 && folded.starts_with(&word));
    match (near, begun.next(), begun.next()) {
        (Some((_, c)), ..) | (None, Some(&(c, _)), None) => Some(c),
        _ => None,
    }
}

/// Optimal string alignment distance.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut d = (last[j] + usize::from(x != y)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                d = d.min(before[j - 1] + 1);
            }
            row.push(d);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

const MAX_LEN: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_the_word_that_was_meant() {
        let keys = ["fail_action", "timeout", "interval", "rise", "fall"];
        assert_eq!(closest("fail_acton", keys), Some("fail_action"));
        assert_eq!(closest("tiemout", keys), Some("timeout"));
        assert_eq!(closest("Fail-Action", keys), Some("fail_action"));
        assert_eq!(closest("rize", keys), Some("rise"));
        assert_eq!(closest("inter", keys), Some("interval"));
    }

    #[test]
    fn a_different_word_finds_nothing() {
        assert_eq!(closest("banana", ["timeout", "interval"]), None);
        assert_eq!(closest("", ["a", "b"]), None);
        assert_eq!(closest(&"x".repeat(100_000), ["timeout"]), None);
    }
}
