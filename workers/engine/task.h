/* What is asked of a model. The words are those of --task. */
#ifndef EBB_ENGINE_TASK_H
#define EBB_ENGINE_TASK_H

enum task { TASK_EMBED, TASK_CLASSIFY, TASK_TOKENS, TASK_FILL_MASK, TASK_OUTPUTS, TASKS };
extern const char *const task_words[TASKS];

#endif
