//! Operators and tensors that nothing reads.

use plimsoll_formats::tflite::TfliteModel;

/// Removes operators and tensors that no output depends on.
pub(crate) fn remove_dead(model: &mut TfliteModel) {
    let mut read: Vec<bool> = vec![false; model.tensors.len()];
    model.outputs.iter().chain(&model.inputs).for_each(|tensor| read[*tensor as usize] = true);
    let mut kept = Vec::with_capacity(model.operators.len());
    for operator in std::mem::take(&mut model.operators).into_iter().rev() {
        let is_read = operator.outputs.iter().any(|tensor| read[*tensor as usize]);
        if is_read {
            let named = operator.inputs.iter().chain(&operator.outputs).chain(&operator.intermediates);
            named.filter(|tensor| **tensor >= 0).for_each(|tensor| read[*tensor as usize] = true);
            kept.push(operator);
        }
    }
    kept.reverse();
    model.operators = kept;
    let mut index = vec![-1; model.tensors.len()];
    let kept = index.iter_mut().zip(&read).filter(|(_, is_read)| **is_read);
    kept.zip(0..).for_each(|((new, _), next)| *new = next);
    let mut is_read = read.iter();
    model.tensors.retain(|_| *is_read.next().expect("one for each"));
    let renumber =
        |tensors: &mut Vec<i32>| tensors.iter_mut().filter(|tensor| **tensor >= 0).for_each(|tensor| *tensor = index[*tensor as usize]);
    for operator in &mut model.operators {
        renumber(&mut operator.inputs);
        renumber(&mut operator.outputs);
        renumber(&mut operator.intermediates);
    }
    renumber(&mut model.inputs);
    renumber(&mut model.outputs);
}
